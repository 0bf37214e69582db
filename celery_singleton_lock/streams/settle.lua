-- KEYS: the stream's state. ARGV: the shard, the fence, the generation, the ids of what was processed.
-- -1, and nothing is marked, if there was a holder with a larger fence.
local base, shard = KEYS[1], ARGV[1]
if redis.call('HGET', base .. ':fences', shard) ~= ARGV[2] then
  return -1
end
return redis.call('XDEL', base .. ':' .. ARGV[3] .. ':' .. shard, unpack(ARGV, 4))
