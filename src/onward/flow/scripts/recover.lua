-- Take back jobs whose workers are gone. ARGV[2]: milliseconds a job without a lock is left alone.
-- A job that was locked once: its lock expired, which counts as the worker's timeout. One that never was: its worker died,
-- or lost its connection, between moving and locking it; it is taken back when seen a second time, and nothing is counted.
-- Returns rows of what happened ('timeout', 'taken-back', 'missing'), job id, stage, worker, what follows, correlation id.
local happened = {}
local function note(...) happened[#happened + 1] = {...} end

local function look_at(id, stage)
  local worker, correlation = unpack(redis.call('HMGET', job_key(id), 'held-by', 'correlation-id'))
  if redis.call('EXISTS', job_key(id)) == 0 then
    leave(id, stage)
    note('missing', id, stage, '', '', '')
  elseif worker then
    leave(id, stage)
    local message = string.format(
      'worker timeout: %s did not finish stage %s within %g s', worker, stage, flow.stages[stage].timeout / 1000)
    note('timeout', id, stage, worker, retry_or_fail(id, stage, message), correlation or '')
  else
    local sightings = queue_key(stage, 'unlocked')
    local seen = tonumber(redis.call('HGET', sightings, id))
    if not seen then
      redis.call('HSET', sightings, id, now)
      redis.call('PEXPIRE', sightings, 60000)
    elseif now - seen >= tonumber(ARGV[2]) then
      leave(id, stage)
      make_ready(id, stage, true)
      note('taken-back', id, stage, '', '', correlation or '')
    end
  end
end

for stage in pairs(flow.stages) do
  for _, id in ipairs(redis.call('LRANGE', queue_key(stage, 'processing'), 0, -1)) do
    if redis.call('EXISTS', lock_key(stage, id)) == 0 then look_at(id, stage) end
  end
end
return happened
