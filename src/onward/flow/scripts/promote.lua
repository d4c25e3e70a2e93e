-- Make ready what was delayed and is due, and wake workers for lines that move on. ARGV[2]: how many per stage at most.
-- Returns the milliseconds until something is due next, or -1.
local soonest = -1
local function note_due(due)
  if due and (soonest < 0 or due - now < soonest) then soonest = math.max(math.ceil(due - now), 0) end
end

for stage, settings in pairs(flow.stages) do
  local delayed = queue_key(stage, 'delayed')
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, ARGV[2])) do
    redis.call('ZREM', delayed, id)
    make_ready(id, stage)
  end
  note_due(tonumber(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]))
  if settings.rate then
    local groups = queue_key(stage, 'groups')
    if redis.call('ZCOUNT', groups, '-inf', now) > 0 then wake(stage, 1) end
    -- Not those that are due already: they wait for a worker, who may be busy for long.
    note_due(tonumber(redis.call('ZRANGEBYSCORE', groups, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]))
  end
end
return soonest
