-- A handler raised: run the job again, as long as its stage allows it, or let it fail.
-- ARGV: 2 stage, 3 job id, 4 worker, 5 claim, 6 message, 7 '1' when trying again cannot help.
-- Returns 'retried' or 'failed'; 'repeated' when this claim was settled before; 'lost' when it changed nothing.
local stage, id, worker, claim = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if not holds(stage, id, worker, claim) then
  return is_repeated(id, stage, claim) and 'repeated' or 'lost'
end
note_settled(id, stage, claim)
leave(id, stage)
return retry_or_fail(id, stage, ARGV[6], ARGV[7] == '1')
