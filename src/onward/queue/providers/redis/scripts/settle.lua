-- Say how jobs ended. ARGV: how many completed jobs are kept, then for every job: id, lock token, what became of it, and
--   complete  '1' to remove it, its result or '', ''
--   again     how long until then, its error, its priority
--   fail      '1' to remove it, its error, ''
--   release   '', '', its priority
-- Returns for each 1; 0 when another has it or nobody; -1 when it is not there.
local keep, first, step = tonumber(ARGV[1]), 2, 6
local ids, answers = {}, {}
for i = first, #ARGV, step do
  ids[#ids + 1] = ARGV[i]
end

local holder, settled = {}, {}
for n, token in ipairs(redis.call('HMGET', locks, unpack(ids))) do
  holder[ids[n]] = token
end
for n, id in ipairs(ids) do
  if holder[id] == ARGV[first + (n - 1) * step + 1] then
    holder[id], answers[n], settled[#settled + 1] = nil, 1, id
  else
    answers[n] = redis.call('HEXISTS', jobs, id) - 1
  end
end
if #settled == 0 then
  return answers
end
-- First of all: what only removes is allowed when the server's memory is full, and from then on the rest is, too.
redis.call('ZREM', active, unpack(settled))
redis.call('HDEL', locks, unpack(settled))

local done, gone, ready = {}, {}, false
local become = {
  complete = function(id, remove, result)
    redis.call('HINCRBY', meta, 'completed', 1)
    if remove == '1' then
      gone[#gone + 1] = id
      return
    end
    done[#done + 1] = now
    done[#done + 1] = id
    if result ~= '' then
      redis.call('HSET', results, id, result)
    end
  end,
  again = function(id, delay, wrong, priority)
    redis.call('HINCRBY', attempts, id, 1)
    redis.call('HSET', errors, id, wrong)
    if tonumber(delay) > 0 then
      delay_until(id, now + delay)
    else
      line_up(id, tonumber(priority))
      ready = true
    end
  end,
  fail = function(id, remove, wrong)
    redis.call('HINCRBY', attempts, id, 1)
    redis.call('HSET', errors, id, wrong)
    fail(id, remove == '1')
  end,
  release = function(id, _, _, priority)
    line_up_first(id, tonumber(priority))
    ready = true
  end,
}
for n, id in ipairs(ids) do
  if answers[n] == 1 then
    local at = first + (n - 1) * step
    become[ARGV[at + 2]](id, ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
  end
end

if #done > 0 then
  redis.call('ZADD', completed, unpack(done))
  local excess = redis.call('ZCARD', completed) - keep
  if excess > 0 then
    local oldest = redis.call('ZPOPMIN', completed, math.min(excess, 2000))
    for i = 1, #oldest, 2 do
      gone[#gone + 1] = oldest[i]
    end
  end
end
if #gone > 0 then
  forget(gone)
end
if ready then
  wake_one()
end
return answers
