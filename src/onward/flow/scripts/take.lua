-- Move the most urgent job of a stage with priorities to its processing list, like BLMOVE for other stages.
-- ARGV[2]: the stage. Returns the id, or nothing.
local stage = ARGV[2]
local taken = redis.call('ZPOPMIN', queue_key(stage, 'prioritised'))
if not taken[1] then
  redis.call('DEL', queue_key(stage, 'wake'))
  return false
end
redis.call('RPUSH', queue_key(stage, 'processing'), taken[1])
return taken[1]
