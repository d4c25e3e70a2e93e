-- Take jobs. ARGV: how many at most, the length of a lease, the lock token, how many to line up at most.
-- Returns the time, how long until something is due by itself (-1: nothing is), and of the jobs taken: ids, records,
-- attempts, errors.
local count, lease, token, most = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]

for _, id in ipairs(redis.call('ZRANGE', delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)) do
  redis.call('ZREM', delayed, id)
  local _, priority = policy_of(id)
  line_up(id, priority)
end

-- A lease that ran out: its worker is dead or stuck, and that was an attempt.
for _, id in ipairs(redis.call('ZRANGE', active, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)) do
  redis.call('ZREM', active, id)
  redis.call('HDEL', locks, id)
  redis.call('HSET', errors, id, 'its worker died, or was stuck for longer than the lease')
  local tried = redis.call('HINCRBY', attempts, id, 1)
  local allowed, priority, remove_on_fail = policy_of(id)
  if tried < allowed then
    line_up(id, priority)
  else
    fail(id, remove_on_fail)
  end
end

local ids = {}
local paused = redis.call('HEXISTS', meta, 'paused') == 1
if not paused then
  local first = redis.call('ZPOPMIN', urgent, count)
  for i = 1, #first, 2 do
    ids[#ids + 1] = string.sub(first[i], 17)
  end
  if #ids < count then
    for _, id in ipairs(redis.call('LPOP', waiting, count - #ids) or {}) do
      ids[#ids + 1] = id
    end
  end
end

if #ids == 0 then
  local due = math.huge
  for _, key in ipairs({delayed, active}) do
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    due = math.min(due, tonumber(first[2]) or math.huge)
  end
  return {now, due < math.huge and math.max(due - now, 0) or -1, {}, {}, {}, {}}
end

local held, since, until_then = {}, {}, {}
for i, id in ipairs(ids) do
  held[2 * i - 1], held[2 * i] = id, token
  since[2 * i - 1], since[2 * i] = id, now
  until_then[2 * i - 1], until_then[2 * i] = now + lease, id
end
redis.call('HSET', locks, unpack(held))
redis.call('HSET', taken, unpack(since))
redis.call('ZADD', active, unpack(until_then))
if redis.call('LLEN', waiting) > 0 or redis.call('ZCARD', urgent) > 0 then
  wake_one()
end
return {
  now, -1, ids,
  redis.call('HMGET', jobs, unpack(ids)), redis.call('HMGET', attempts, unpack(ids)), redis.call('HMGET', errors, unpack(ids)),
}
