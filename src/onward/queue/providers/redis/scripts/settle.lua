-- Say how jobs ended. ARGV: how many completed jobs are kept and for how long, how many failed ones and for how long, and
-- a list of endings in MessagePack.
-- Returns for each ending 1; 0 when another has the job or nobody; -1 when it is not there.
local endings = cmsgpack.unpack(ARGV[5])
local ids, holders, answers, settled = {}, {}, {}, {}
for n, ending in ipairs(endings) do
  ids[n] = ending.id
end
for n, lock in ipairs(redis.call('HMGET', locks, unpack(ids))) do
  holders[ids[n]] = lock
end
for n, ending in ipairs(endings) do
  if holders[ending.id] == ending.lock then
    holders[ending.id], answers[n] = nil, 1
    settled[#settled + 1] = ending.id
  else
    answers[n] = redis.call('HEXISTS', jobs, ending.id) - 1
  end
end
if #settled == 0 then
  return answers
end
-- First of all: what only removes is allowed when the server's memory is full, and from then on the rest is, too.
redis.call('ZREM', active, unpack(settled))
redis.call('HDEL', locks, unpack(settled))

local done, gone, ready, has_failed = {}, {}, false, false

local function count_failure(ending)
  redis.call('HINCRBY', attempts, ending.id, 1)
  redis.call('HSET', errors, ending.id, ending.text)
end

local become = {
  completed = function(ending)
    if ending.remove then
      gone[#gone + 1] = ending.id
    else
      done[#done + 1] = now
      done[#done + 1] = ending.id
      if ending.text ~= '' then
        redis.call('HSET', results, ending.id, ending.text)
      end
    end
  end,
  delayed = function(ending)
    count_failure(ending)
    delay_until(ending.id, now + ending.delay)
  end,
  waiting = function(ending)
    count_failure(ending)
    line_up(ending.id, ending.priority)
    ready = true
  end,
  failed = function(ending)
    count_failure(ending)
    fail(ending.id, ending.reason, ending.remove)
    has_failed = true
  end,
  released = function(ending)
    line_up_first(ending.id, ending.priority)
    ready = true
  end,
}

local completions = 0
for n, ending in ipairs(endings) do
  if answers[n] == 1 then
    become[ending.outcome](ending)
    completions = completions + (ending.outcome == 'completed' and 1 or 0)
  end
end
redis.call('HINCRBY', meta, 'completed', completions)
if #gone > 0 then
  forget(gone)
end
if #done > 0 then
  redis.call('ZADD', completed, unpack(done))
  trim(completed, tonumber(ARGV[1]), tonumber(ARGV[2]))
end
if has_failed then
  trim(failed, tonumber(ARGV[3]), tonumber(ARGV[4]))
end
if ready then
  wake_one()
end
return answers
