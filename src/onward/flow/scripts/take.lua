-- Move the next job of a stage with priorities or a rate to its processing list, like BLMOVE for other stages.
-- A job that its rate does not let begin gets a place in the line of its group: by its turn, or its priority; so it
-- overtakes nobody, nobody of its group overtakes it, and other groups pass.
-- ARGV[2]: the stage. Returns the id, or ''; the milliseconds until a line moves on, or -1; the ids put off by this call.
local stage = ARGV[2]
local settings = flow.stages[stage]
local rate = settings.rate
local waiting = queue_key(stage, settings.prioritised and 'prioritised' or 'waiting')
local groups, limited = queue_key(stage, 'groups'), queue_key(stage, 'limited')
local put_off = {}

local function begin(id, group)
  note_start(stage, group)
  if redis.call('EXISTS', job_key(id)) == 1 then
    redis.call('HSET', job_key(id), 'taken-at', now, 'taken-from', group)
  end
  return id
end

-- A group whose line may move on: later than it seemed, if its jobs began later than they were taken.
local function find_group()
  for _, group in ipairs(redis.call('ZRANGEBYSCORE', groups, '-inf', now, 'LIMIT', 0, 100)) do
    local free = free_at(stage, group)
    if free <= now then return group end
    redis.call('ZADD', groups, free, group)
  end
end

-- The first of a line that may move on. Those groups take turns.
local function next_in_line()
  local group = find_group()
  if not group then return nil end
  local line = line_key(stage, group)
  local id = redis.call('ZPOPMIN', line)[1]
  redis.call('ZREM', limited, id)
  redis.call('HDEL', job_key(id), 'in-line')
  begin(id, group)
  if redis.call('EXISTS', line) == 1 then
    redis.call('ZADD', groups, math.max(free_at(stage, group), now), group)
  else
    redis.call('ZREM', groups, group)
  end
  return id
end

local function put_in_line(id, group, place)
  redis.call('ZADD', line_key(stage, group), place, id)
  redis.call('ZADD', limited, now, id)
  redis.call('HSET', job_key(id), 'in-line', group)
  redis.call('ZADD', groups, 'NX', free_at(stage, group), group)
  put_off[#put_off + 1] = id
end

local function next_waiting()
  local id, place
  if settings.prioritised then
    id, place = unpack(redis.call('ZPOPMIN', waiting))
  else
    id = redis.call('LPOP', waiting)
  end
  if not id then return nil, true end
  if not rate or redis.call('EXISTS', job_key(id)) == 0 then return id end
  local group = rate.group and redis.call('HGET', job_key(id), rate.group) or ''
  if free_at(stage, group) <= now and not redis.call('ZSCORE', groups, group) then
    return begin(id, group)
  end
  put_in_line(id, group, place or redis.call('HGET', job_key(id), 'turn') or next_turn())
  return nil
end

local taken, is_empty = rate and next_in_line() or nil, false
for _ = 1, 100 do
  if taken or is_empty then break end
  taken, is_empty = next_waiting()
end

local line_moves = -1
local first_group = rate and redis.call('ZRANGE', groups, 0, 0, 'WITHSCORES')[2]
if first_group then line_moves = math.max(math.ceil(tonumber(first_group) - now), 0) end
if taken then
  redis.call('RPUSH', queue_key(stage, 'processing'), taken)
  if line_moves == 0 then wake(stage, 1) end
elseif is_empty then
  redis.call('DEL', queue_key(stage, 'wake'))
else
  line_moves = 0
end
return {taken or '', line_moves, put_off}
