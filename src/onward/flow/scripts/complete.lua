-- Save a result and let the job go on, all at once: it is never in two queues and never in none.
-- ARGV: 2 stage, 3 job id, 4 worker, 5 claim, 6 the outcome as JSON: {attributes, next, delay, result, children, collect_as}.
-- Returns 'completed', or 'lost' when it changed nothing; and who ended.
local stage, id, worker, claim = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if not holds(stage, id, worker, claim) then return repeated(id, stage, claim) end
local outcome = cjson.decode(ARGV[6])
local key = job_key(id)
save(id, outcome.attributes)
redis.call('HSET', key, 'completed-queue', stage)
note_settled(id, stage, claim, 'completed')
redis.call('HDEL', key, 'retry-count', 'stall-count', 'last-error')
leave(id, stage)
if outcome.children then
  redis.call('DEL', children_key(id))
  redis.call('HSET', key, 'open-children', #outcome.children, 'child-count', #outcome.children,
    'collect-as', outcome.collect_as or '', 'next-queue', outcome.next or '')
  redis.call('SADD', queue_key(stage, 'parked'), id)
  local priority = redis.call('HGET', key, 'job-priority')
  for number, child in ipairs(outcome.children) do
    redis.call('HSET', children_key(id), 'id:' .. number, child.id)
    child.facts['job-priority'] = priority or nil
    create(child)
  end
  if #outcome.children == 0 then join(id) end
elseif outcome.next then
  enqueue(id, outcome.next, outcome.delay)
else
  finish(id, false, outcome.result)
end
return {'completed', ended}
