-- Some jobs of one state. ARGV: the state, where the page begins, how many at most.
-- Returns where the next page begins ('': there is none), and the jobs. Of what is sorted by time, a page begins behind a
-- job, "time/id"; of the others behind so many.
local state, after, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ids, next_page = {}, ''

if state == 'waiting' or state == 'active' then
  local first = tonumber(after) or 0
  local last = first + most
  local before = redis.call('ZCARD', state == 'waiting' and urgent or active)
  if first < before then
    for _, id in ipairs(redis.call('ZRANGE', state == 'waiting' and urgent or active, first, last)) do
      ids[#ids + 1] = state == 'waiting' and string.sub(id, 17) or id
    end
  end
  if state == 'waiting' and #ids <= most then
    local from = math.max(first - before, 0)
    for _, id in ipairs(redis.call('LRANGE', waiting, from, from + most - #ids)) do
      ids[#ids + 1] = id
    end
  end
  if #ids > most then
    ids[#ids], next_page = nil, tostring(last)
  end
else
  local key = ({delayed = delayed, completed = completed, failed = failed})[state]
  local newest_first, first = state ~= 'delayed', 0
  local time, behind = string.match(after, '^(%d+)/(.*)$')
  if time then
    local rank = redis.call(newest_first and 'ZREVRANK' or 'ZRANK', key, behind)
    if rank and tonumber(redis.call('ZSCORE', key, behind)) == tonumber(time) then
      first = rank + 1
    elseif newest_first then
      first = redis.call('ZCOUNT', key, '(' .. time, '+inf')
    else
      first = redis.call('ZCOUNT', key, '-inf', '(' .. time)
    end
  end
  ids = redis.call(newest_first and 'ZREVRANGE' or 'ZRANGE', key, first, first + most)
  if #ids > most then
    ids[#ids] = nil
    next_page = string.format('%.0f/%s', redis.call('ZSCORE', key, ids[#ids]), ids[#ids])
  end
end

local found = {}
for _, id in ipairs(ids) do
  found[#found + 1] = describe(id) or nil
end
return {next_page, found}
