-- Give a job back unfinished, before all others, without counting a retry: its worker is being stopped.
-- ARGV: 2 stage, 3 job id, 4 worker, 5 claim. Returns 1, or 0 when the lock is lost.
local stage, id = ARGV[2], ARGV[3]
if not holds(stage, id, ARGV[4], ARGV[5]) then return 0 end
leave(id, stage)
make_ready(id, stage, true)
return 1
