-- Add jobs. ARGV: groups of additions, each a list in MessagePack. A group is added whole or not at all.
-- Returns for each group the id that is already there, or ''.
local answers, ready = {}, false
for n, packed in ipairs(ARGV) do
  local group, seen = cmsgpack.unpack(packed), {}
  answers[n] = ''
  for _, addition in ipairs(group) do
    if seen[addition.id] or redis.call('HEXISTS', jobs, addition.id) == 1 then
      answers[n] = addition.id
      break
    end
    seen[addition.id] = true
  end
  if answers[n] == '' then
    for _, addition in ipairs(group) do
      redis.call('HSET', jobs, addition.id, addition.record)
      if addition.ttl > 0 then
        redis.call('HSET', expires, addition.id, now + addition.ttl)
      end
      if addition.delay > 0 then
        delay_until(addition.id, now + addition.delay)
      else
        line_up(addition.id, addition.priority)
        ready = true
      end
    end
  end
end
if ready then
  wake_one()
end
return answers
