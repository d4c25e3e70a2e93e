-- Stands before every script: the keys of one queue, and what several scripts do.
-- All instants are microseconds of the server's clock.
local jobs, waiting, urgent, delayed, active, completed, failed, locks, taken, attempts, errors, results, wake, meta =
  unpack(KEYS)

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- What scripts must know of a job is at the head of its record.
local function policy_of(id)
  local most, priority, remove_on_fail = string.match(redis.call('HGET', jobs, id), '^%[(%d+),(%d+),(%l+)')
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
  if priority == 0 then
    redis.call('RPUSH', waiting, id)
  else
    local place = redis.call('HINCRBY', meta, 'place', 1)
    redis.call('ZADD', urgent, -priority, string.format('%016d', place) .. id)
  end
end

-- Before everything that waits with the same priority: '!' sorts before digits, and the last that comes is the first.
local function line_up_first(id, priority)
  if priority == 0 then
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

local function forget(ids)
  for _, hash in ipairs({jobs, taken, attempts, errors, results}) do
    redis.call('HDEL', hash, unpack(ids))
  end
end

local function fail(id, remove)
  if remove then
    forget({id})
  else
    redis.call('ZADD', failed, now, id)
  end
end

-- Its record, attempts, error, when it was taken, its status, and since or until when; false when there is none.
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
  local tried, wrong, since = redis.call('HGET', attempts, id), redis.call('HGET', errors, id), redis.call('HGET', taken, id)
  return {id, record, tried, wrong, since, status, at}
end
