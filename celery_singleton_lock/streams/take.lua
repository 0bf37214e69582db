-- KEYS: the stream's state. ARGV: the shard, the fence, how many, how many shards if nothing is recorded.
-- The generation and its oldest pending changes; -1 if there was a holder with a larger fence.
local base, shard, fence = KEYS[1], ARGV[1], ARGV[2]
local known = redis.call('HGET', base .. ':fences', shard)
if known and known > fence then
  return -1
end
redis.call('HSET', base .. ':fences', shard, fence)
if redis.call('HEXISTS', base, 'shards') == 0 then
  redis.call('HSET', base, 'shards', ARGV[4], 'generation', 1)
end
local old = redis.call('HGET', base, 'old_generation')
if old then
  local left = 0
  for each = 0, tonumber(redis.call('HGET', base, 'old_shards')) - 1 do
    left = left + redis.call('XLEN', base .. ':' .. old .. ':' .. each)
  end
  if left == 0 then
    for each = 0, tonumber(redis.call('HGET', base, 'old_shards')) - 1 do
      redis.call('DEL', base .. ':' .. old .. ':' .. each)
    end
    redis.call('HDEL', base, 'old_generation', 'old_shards')
    old = false
  end
end
local generation = old or redis.call('HGET', base, 'generation')
return {generation, redis.call('XRANGE', base .. ':' .. generation .. ':' .. shard, '-', '+', 'COUNT', ARGV[3])}
