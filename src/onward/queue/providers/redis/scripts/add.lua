-- Add jobs. ARGV: groups, each the number of its jobs, then id, record, delay and priority of every one.
-- A group is added whole or not at all. Returns for each the id that is already there, or ''.
local answers, at, ready = {}, 1, false
while at <= #ARGV do
  local first, last = at + 1, at + 4 * ARGV[at]
  local duplicate, seen = '', {}
  for i = first, last, 4 do
    local id = ARGV[i]
    if seen[id] or redis.call('HEXISTS', jobs, id) == 1 then
      duplicate = id
      break
    end
    seen[id] = true
  end
  if duplicate == '' then
    for i = first, last, 4 do
      local id, delay = ARGV[i], tonumber(ARGV[i + 2])
      redis.call('HSET', jobs, id, ARGV[i + 1])
      if delay > 0 then
        delay_until(id, now + delay)
      else
        line_up(id, tonumber(ARGV[i + 3]))
        ready = true
      end
    end
  end
  answers[#answers + 1] = duplicate
  at = last + 1
end
if ready then
  wake_one()
end
return answers
