-- Every script of a quorum begins so: a node acts only in the incarnation that it is asked in. The last of
-- ARGV, but for the shape of a batch, are the key where that is kept, and what must stand there.
local guard_at = #KEYS > 1 and #ARGV - 1 or #ARGV
if redis.call('GET', ARGV[guard_at - 1]) ~= ARGV[guard_at] then
  return redis.error_reply('STALE the node is not in the incarnation that it was asked in')
end
