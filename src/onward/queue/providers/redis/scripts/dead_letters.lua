-- Jobs that failed for good, the newest first. ARGV: how many at most.
local found = {}
for _, id in ipairs(redis.call('ZRANGE', failed, 0, ARGV[1] - 1, 'REV')) do
  found[#found + 1] = describe(id)
end
return found
