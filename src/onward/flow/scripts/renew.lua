-- Keep a lock for longer. ARGV: 2 stage, 3 job id, 4 worker, 5 claim, 6 milliseconds from now on.
-- Returns 1, or 0 when the lock is lost.
local stage, id = ARGV[2], ARGV[3]
if not holds(stage, id, ARGV[4], ARGV[5]) then return 0 end
redis.call('PEXPIRE', lock_key(stage, id), ARGV[6])
return 1
