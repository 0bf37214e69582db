-- KEYS: the stream's state. ARGV: how many shards from now on, how many if nothing is recorded.
-- What comes from now on goes to the next generation. -1 if the one before is not drained yet.
local base = KEYS[1]
if redis.call('HEXISTS', base, 'old_generation') == 1 then
  return -1
end
local shards = redis.call('HGET', base, 'shards') or ARGV[2]
local generation = redis.call('HGET', base, 'generation') or '1'
local left = 0
for each = 0, tonumber(shards) - 1 do
  left = left + redis.call('XLEN', base .. ':' .. generation .. ':' .. each)
end
redis.call('HSET', base, 'generation', tonumber(generation) + 1, 'shards', ARGV[1])
if left > 0 then
  redis.call('HSET', base, 'old_generation', generation, 'old_shards', shards)
  return 1
end
for each = 0, tonumber(shards) - 1 do
  redis.call('DEL', base .. ':' .. generation .. ':' .. each)
end
return 1
