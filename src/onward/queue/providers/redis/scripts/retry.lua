-- Put a failed job back, with nothing counted. ARGV: its id. Returns 0 when no such job has failed.
local id = ARGV[1]
if redis.call('ZREM', failed, id) == 0 then
  return 0
end
for _, hash in ipairs({attempts, stalls, errors, reasons, expires}) do
  redis.call('HDEL', hash, id)
end
local _, priority = policy_of(id)
line_up(id, priority)
wake_one()
return 1
