-- Give a job back unfinished, before all others, uncounted: its worker is being stopped, or never learned of its claim.
-- ARGV: 2 stage, 3 job id, 4 worker, 5 claim, or '' for whichever the worker has. Returns 1, or 0 when it has none.
local stage, id, worker, claim = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if claim == '' then claim = redis.call('HGET', job_key(id), 'claim-number') end
if not claim or not holds(stage, id, worker, claim) then return 0 end
leave(id, stage)
make_ready(id, stage, true)
return 1
