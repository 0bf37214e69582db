-- As claim.lua, but also of a node that takes part: an operator said so.
return for_each_key(function(incarnation, run_id, ticket, ms, generation)
  redis.call('SET', incarnation .. '.repair', ticket, 'PX', ms)
  return '1'
end)
