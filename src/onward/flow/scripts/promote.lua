-- Make ready what was delayed and is due. ARGV[2]: how many per stage at most.
-- Returns the milliseconds until the next one is due, or -1 when nothing is delayed.
local soonest = -1
for stage in pairs(flow.stages) do
  local delayed = queue_key(stage, 'delayed')
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, ARGV[2])) do
    redis.call('ZREM', delayed, id)
    make_ready(id, stage)
  end
  local due = tonumber(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2])
  if due and (soonest < 0 or due - now < soonest) then soonest = math.max(due - now, 0) end
end
return soonest
