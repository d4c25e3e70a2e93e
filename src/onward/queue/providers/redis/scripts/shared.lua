-- Stands before every script, behind the names of the keys that it uses: what several scripts do.
-- First it looks whether all keys are ours: a script that fails in its middle would have changed some of them. (A user
-- who may not ask is not told.)
-- All instants are microseconds of the server's clock.
for n, kind in ipairs(kinds) do
  local found = redis.pcall('TYPE', KEYS[n]).ok or 'none'
  if found ~= kind and found ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[n] .. ' is a ' .. found .. ' and not a ' .. kind)
  end
end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- What scripts must know of a job is at the head of its record; nothing when there is no record that they can read.
local function policy_of(id)
  local most, priority, remove_on_fail = string.match(redis.call('HGET', jobs, id) or '', '^%[(%d+),(%d+),(%l+)')
  return tonumber(most), tonumber(priority), remove_on_fail == 'true'
end

-- One token at a time: whoever takes jobs and leaves some leaves a token, too.
local function wake_one()
  if redis.call('LLEN', wake) == 0 then
    redis.call('RPUSH', wake, 1)
  end
end

-- Most jobs have no priority, and a list is small and fast. The others sort by priority, then by their place.
local function line_up(id, priority)
  if (priority or 0) == 0 then
    redis.call('RPUSH', waiting, id)
  else
    local place = redis.call('HINCRBY', meta, 'place', 1)
    redis.call('ZADD', urgent, -priority, string.format('%016d', place) .. id)
  end
end

-- Before everything that waits with the same priority: '!' sorts before digits, and the last that comes is the first.
local function line_up_first(id, priority)
  if (priority or 0) == 0 then
    redis.call('LPUSH', waiting, id)
  else
    local place = 999999999999999 - redis.call('HINCRBY', meta, 'place', 1)
    redis.call('ZADD', urgent, -priority, string.format('!%015d', place) .. id)
  end
end

-- Idle workers sleep until the first delayed job is due: a new first one must wake one of them.
local function delay_until(id, due)
  redis.call('ZADD', delayed, due, id)
  if redis.call('ZRANGE', delayed, 0, 0)[1] == id then
    wake_one()
  end
end

-- Who asks is a worker that lives. Those of an hour ago go first: what only removes is allowed when the server's memory is
-- full, and from then on the rest of the script is, too.
local function hear_of(consumer)
  redis.call('ZREMRANGEBYSCORE', workers, '-inf', now - 3600000000)
  redis.call('ZADD', workers, now, consumer)
end

local function forget(ids)
  for _, hash in ipairs({jobs, taken, attempts, stalls, errors, reasons, results, progress, expires}) do
    redis.call('HDEL', hash, unpack(ids))
  end
end

-- Keep the newest finished jobs, so many and no older; a few go at a time.
local function trim(finished, count, age)
  local excess = redis.call('ZCARD', finished) - count
  local gone
  if excess > 0 then
    gone = redis.call('ZRANGE', finished, 0, math.min(excess, 2000) - 1)
  else
    gone = redis.call('ZRANGE', finished, '-inf', now - age, 'BYSCORE', 'LIMIT', 0, 2000)
  end
  if #gone > 0 then
    redis.call('ZREM', finished, unpack(gone))
    forget(gone)
  end
end

local function fail(id, reason, remove)
  if remove then
    forget({id})
  else
    redis.call('HSET', reasons, id, reason)
    redis.call('ZADD', failed, now, id)
  end
end

-- What is kept of it, its status, and since or until when; false when there is nothing.
local function describe(id)
  local record = redis.call('HGET', jobs, id)
  if not record then
    return false
  end
  local status, at = 'waiting', false
  if redis.call('HEXISTS', locks, id) == 1 then
    status = 'active'
  else
    for name, key in pairs({delayed = delayed, completed = completed, failed = failed}) do
      local score = redis.call('ZSCORE', key, id)
      if score then
        status, at = name, tonumber(score)
      end
    end
  end
  local facts = {id, record, status, at}
  for _, hash in ipairs({attempts, stalls, errors, reasons, taken, results, progress, expires}) do
    facts[#facts + 1] = redis.call('HGET', hash, id)
  end
  return facts
end
