-- KEYS: the stream's state. ARGV: how many shards if nothing is recorded, the key's number, the fields.
local base = KEYS[1]
if redis.call('HEXISTS', base, 'shards') == 0 then
  redis.call('HSET', base, 'shards', ARGV[1], 'generation', 1)
end
local shards = tonumber(redis.call('HGET', base, 'shards'))
local shard = string.format('%.0f', tonumber(ARGV[2]) % shards)
local stream = base .. ':' .. redis.call('HGET', base, 'generation') .. ':' .. shard
return redis.call('XADD', stream, '*', unpack(ARGV, 3))
