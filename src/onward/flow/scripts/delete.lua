-- Remove a job and its children from every list, index and lock. ARGV[2]: the job id.
-- A parent that waits for it fails: it would wait for ever. Returns how many jobs are gone, and who ended by that.
local function leave_line(id, stage)
  if redis.call('ZREM', queue_key(stage, 'limited'), id) == 0 then return end
  local group = redis.call('HGET', job_key(id), 'in-line')
  redis.call('ZREM', line_key(stage, group), id)
  if redis.call('EXISTS', line_key(stage, group)) == 0 then redis.call('ZREM', queue_key(stage, 'groups'), group) end
end

local function remove(id)
  local key = job_key(id)
  if redis.call('EXISTS', key) == 0 then return 0 end
  local removed = 1
  local children = redis.call('HGETALL', children_key(id))
  unpark(id)
  for i = 1, #children, 2 do
    if string.sub(children[i], 1, 3) == 'id:' then removed = removed + remove(children[i + 1]) end
  end
  for stage in pairs(flow.stages) do
    redis.call('LREM', queue_key(stage, 'waiting'), 0, id)
    redis.call('LREM', queue_key(stage, 'processing'), 0, id)
    redis.call('ZREM', queue_key(stage, 'delayed'), id)
    redis.call('ZREM', queue_key(stage, 'prioritised'), id)
    leave_line(id, stage)
    redis.call('HDEL', queue_key(stage, 'unlocked'), id)
    redis.call('DEL', lock_key(stage, id))
  end
  for _, failed in ipairs({true, false}) do
    redis.call('ZREM', ended_key(failed), id)
    expire_with_last(ended_key(failed))
  end
  local parent, number, is_done = unpack(redis.call('HMGET', key, 'parent-id', 'child-number', 'done'))
  forget(id)
  if parent and not is_done then child_ended(parent, number, id, true) end
  return removed
end

return {remove(ARGV[2]), ended}
