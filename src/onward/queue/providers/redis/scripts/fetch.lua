-- Take jobs. ARGV: how many at most, the length of a lease, the lock token, how many to line up at most, who asks (if
-- anybody is to know), how many failed jobs are kept and for how long, and the tokens of earlier calls whose answers were lost.
-- Returns the time, how long until something is due by itself (-1: nothing is), the jobs that failed without having been
-- run, the ids without a record, and of the jobs taken: ids, records, attempts, stalls, errors.
local count, lease, token, most, consumer = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5]
local keep_count, keep_age = tonumber(ARGV[6]), tonumber(ARGV[7])
local ended, missing, ids = {}, {}, {}

if consumer ~= '' then
  hear_of(consumer)
end

-- Nobody got these jobs: they are where they were.
if #ARGV > 7 then
  local lost = {}
  for i = 8, #ARGV do
    lost[ARGV[i]] = true
  end
  local held = redis.call('HGETALL', locks)
  for i = 1, #held, 2 do
    if lost[held[i + 1]] then
      redis.call('HDEL', locks, held[i])
      redis.call('HDEL', taken, held[i])
      redis.call('ZREM', active, held[i])
      local _, priority = policy_of(held[i])
      line_up_first(held[i], priority)
    end
  end
end

for _, id in ipairs(redis.call('ZRANGE', delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)) do
  redis.call('ZREM', delayed, id)
  local _, priority = policy_of(id)
  line_up(id, priority)
end

local function end_unrun(id, reason, text, remove_on_fail)
  redis.call('HSET', errors, id, text)
  redis.call('HSET', reasons, id, reason)
  local facts = describe(id)
  facts[3], facts[4] = 'failed', now
  ended[#ended + 1] = facts
  fail(id, reason, remove_on_fail)
end

-- A lease that ran out: its worker is dead or stuck.
for _, id in ipairs(redis.call('ZRANGE', active, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)) do
  redis.call('ZREM', active, id)
  redis.call('HDEL', locks, id)
  local allowed, priority, remove_on_fail = policy_of(id)
  if allowed and redis.call('HINCRBY', stalls, id, 1) > allowed then
    end_unrun(id, 'stalled', 'its worker died, or was stuck for longer than the lease', remove_on_fail)
  else
    line_up(id, priority)
  end
end

local paused = redis.call('HEXISTS', meta, 'paused') == 1
local looked = 0
while not paused and #ids < count and looked < most do
  local found, wanted = {}, count - #ids
  local first = redis.call('ZPOPMIN', urgent, wanted)
  for i = 1, #first, 2 do
    found[#found + 1] = string.sub(first[i], 17)
  end
  if #found < wanted then
    for _, id in ipairs(redis.call('LPOP', waiting, wanted - #found) or {}) do
      found[#found + 1] = id
    end
  end
  if #found == 0 then
    break
  end
  looked = looked + #found
  local until_then = redis.call('HLEN', expires) > 0 and redis.call('HMGET', expires, unpack(found)) or {}
  for n, id in ipairs(found) do
    if until_then[n] and tonumber(until_then[n]) <= now and redis.call('HEXISTS', jobs, id) == 1 then
      local _, _, remove_on_fail = policy_of(id)
      end_unrun(id, 'expired', 'it waited for longer than its time to live', remove_on_fail)
    else
      ids[#ids + 1] = id
    end
  end
end
if #ended > 0 then
  trim(failed, keep_count, keep_age)
end

local records = #ids > 0 and redis.call('HMGET', jobs, unpack(ids)) or {}
local kept, texts = {}, {}
for n, id in ipairs(ids) do
  if records[n] then
    kept[#kept + 1], texts[#texts + 1] = id, records[n]
  else
    missing[#missing + 1] = id
  end
end
if #missing > 0 then
  forget(missing)
end
ids, records = kept, texts

if #ids == 0 then
  local due = math.huge
  for _, key in ipairs({delayed, active}) do
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    due = math.min(due, tonumber(first[2]) or math.huge)
  end
  return {now, due < math.huge and math.max(due - now, 0) or -1, ended, missing, {}, {}, {}, {}, {}}
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
  now, -1, ended, missing, ids, records,
  redis.call('HMGET', attempts, unpack(ids)), redis.call('HMGET', stalls, unpack(ids)), redis.call('HMGET', errors, unpack(ids)),
}
