-- Give one client the right to repair or to found this node, for some ms. Not if the node takes part: in
-- this life, and in this generation or a later one. Answers 1 | 0 it does, or somebody else has the right
return for_each_key(function(incarnation, run_id, ticket, ms, generation)
  local known = redis.call('GET', incarnation)
  if known and known:sub(1, #run_id) == run_id and known:match('%S+$') >= generation then return '0' end
  return redis.call('SET', incarnation .. '.repair', ticket, 'NX', 'PX', ms) and '1' or '0'
end)
