-- Keep nothing of a job. ARGV: its id. Returns 1; 0 when a worker has it; -1 when it is not there.
local id = ARGV[1]
if redis.call('HEXISTS', jobs, id) == 0 then
  return -1
end
if redis.call('HEXISTS', locks, id) == 1 then
  return 0
end
local finished_or_delayed = redis.call('ZREM', delayed, id) + redis.call('ZREM', completed, id) + redis.call('ZREM', failed, id)
if finished_or_delayed == 0 and redis.call('LREM', waiting, 1, id) == 0 then
  for _, member in ipairs(redis.call('ZRANGE', urgent, 0, -1)) do
    if string.sub(member, 17) == id then
      redis.call('ZREM', urgent, member)
      break
    end
  end
end
forget({id})
return 1
