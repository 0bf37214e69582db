-- KEYS: the stream's state. ARGV: how many shards from now on, how many if nothing is recorded.
-- What comes from now on goes to the next generation. -1 if the one before is not drained yet.
local base = KEYS[1]
if redis.call('HEXISTS', base, 'old_generation') == 1 then
  return -1
end
local shards = redis.call('HGET', base, 'shards') or ARGV[2]
local generation = redis.call('HGET', base, 'generation') or '1'
redis.call('HSET', base, 'old_generation', generation, 'old_shards', shards,
  'generation', tonumber(generation) + 1, 'shards', ARGV[1])
return 1
