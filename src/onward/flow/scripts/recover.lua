-- Take back jobs whose workers are gone. ARGV[2]: milliseconds a job without a lock is left alone.
-- A job that was locked once: its lock ran out, which is a stall. One that never was: its worker died, or lost its
-- connection, between moving and locking it; it is taken back when seen a second time, and nothing is counted.
-- Returns rows of what happened ('stalled', 'taken-back', 'missing'), job id, stage, worker, stalls, whether it runs again,
-- correlation id; and who ended.
local happened = {}
local function note(...) happened[#happened + 1] = {...} end

local function stall(id, stage, worker, correlation)
  local settings, stalls = flow.stages[stage], redis.call('HINCRBY', job_key(id), 'stall-count', 1)
  local message = string.format(
    'stalled %d times: worker %s died, or did not reach Redis for %g s (lock=)', stalls, worker, settings.lock / 1000)
  leave(id, stage)
  note('stalled', id, stage, worker, stalls, stalls <= settings.max_stalls and 1 or 0, correlation)
  if stalls > settings.max_stalls then
    fail(id, stage, string.format('%s; max_stalls=%d', message, settings.max_stalls), 'stalled')
  else
    redis.call('HSET', job_key(id), 'last-error', message)
    make_ready(id, stage, true)
  end
end

local function look_at(id, stage)
  local worker, correlation = unpack(redis.call('HMGET', job_key(id), 'held-by', 'correlation-id'))
  if redis.call('EXISTS', job_key(id)) == 0 then
    leave(id, stage)
    note('missing', id, stage, '', 0, 0, '')
  elseif worker then
    stall(id, stage, worker, correlation or '')
  else
    local sightings = queue_key(stage, 'unlocked')
    local seen = tonumber(redis.call('HGET', sightings, id))
    if not seen then
      redis.call('HSET', sightings, id, now)
      redis.call('PEXPIRE', sightings, 60000)
    elseif now - seen >= tonumber(ARGV[2]) then
      leave(id, stage)
      make_ready(id, stage, true)
      note('taken-back', id, stage, '', 0, 1, correlation or '')
    end
  end
end

for stage in pairs(flow.stages) do
  local processing = redis.call('LRANGE', queue_key(stage, 'processing'), 0, -1)
  -- From the youngest on: each goes before all others, so in the end the oldest is first.
  for i = #processing, 1, -1 do
    if redis.call('EXISTS', lock_key(stage, processing[i])) == 0 then look_at(processing[i], stage) end
  end
end
return {happened, ended}
