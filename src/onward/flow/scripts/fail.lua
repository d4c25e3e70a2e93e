-- A handler raised, took too long, or was refused: run the job again, as long as its stage allows it, or let it fail.
-- ARGV: 2 stage, 3 job id, 4 worker, 5 claim, 6 message, 7 '1' when trying again cannot help, 8 a random number from 0 to
-- 1 (those of scripts are the same each time). Returns 'retried', 'failed', or 'lost' when it changed nothing; and who ended.
local stage, id, worker, claim, message = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if not holds(stage, id, worker, claim) then return repeated(id, stage, claim) end
local key, settings = job_key(id), flow.stages[stage]
local retries = tonumber(redis.call('HGET', key, 'retry-count') or 0)
local is_permanent = ARGV[7] == '1'
leave(id, stage)
if is_permanent or retries >= (settings.max_retries or 0) then
  note_settled(id, stage, claim, 'failed')
  fail(id, stage, message, is_permanent and 'permanent' or 'attempts')
  return {'failed', ended}
end
note_settled(id, stage, claim, 'retried')
redis.call('HSET', key, 'retry-count', retries + 1, 'last-error', message)
local delay = math.min((settings.backoff or 0) * (settings.backoff_factor or 1) ^ retries, settings.backoff_most or 0)
enqueue(id, stage, math.floor(delay * (1 + (settings.backoff_jitter or 0) * (ARGV[8] - 0.5))))
return {'retried', ended}
