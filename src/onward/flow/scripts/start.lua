-- Start jobs, all or none. ARGV[2]: how many may wait at the first stage, or ''; ARGV[3…]: new jobs as JSON. Asked again
-- with the same 'start-token', because the first answer was lost, nothing is started twice.
-- Returns 'started'; or 'exists' with the id that is taken; or 'full' with the number that wait.
local jobs = {}
for i = 3, #ARGV do
  local new = cjson.decode(ARGV[i])
  if redis.call('EXISTS', job_key(new.id)) == 1 then
    local is_ours = redis.call('HGET', job_key(new.id), 'start-token') == new.facts['start-token']
    return is_ours and {'started'} or {'exists', new.id}
  end
  jobs[#jobs + 1] = new
end
local most = tonumber(ARGV[2])
if most then
  local stage = jobs[1].stage
  local waiting = count_waiting(stage)
  if waiting + #jobs > most then return {'full', waiting} end
end
for _, new in ipairs(jobs) do create(new) end
return {'started'}
