-- Look whether the flow's keys are free for it, and note whose queues they are.
-- A single server has one name per queue, so two flows may not have stages of the same name: the second is refused.
-- Returns nothing when all is well, else 'occupied' with key, type found and type needed, or 'taken' with stage and flow.
local kinds = {
  waiting = 'list', processing = 'list', delayed = 'zset', prioritised = 'zset', parked = 'set', wake = 'list',
  unlocked = 'hash', limited = 'zset', groups = 'zset',
}
local week = 7 * 24 * 3600 * 1000

for stage in pairs(flow.stages) do
  for part, kind in pairs(kinds) do
    local found = redis.call('TYPE', queue_key(stage, part)).ok
    if found ~= 'none' and found ~= kind then
      return {'occupied', queue_key(stage, part), found, kind}
    end
  end
  if flow.tag == '' then
    local owner = redis.call('GET', queue_key(stage, 'flow'))
    if owner and owner ~= flow.name then return {'taken', stage, owner} end
  end
end
if flow.tag == '' then
  for stage in pairs(flow.stages) do
    redis.call('SET', queue_key(stage, 'flow'), flow.name, 'PX', week)
  end
end
return {}
