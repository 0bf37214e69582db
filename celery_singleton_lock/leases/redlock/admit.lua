-- The node takes part, in this incarnation. Only for who has the right, see claim.lua. Answers 1 | 0
return for_each_key(function(incarnation, ticket, now_in)
  if redis.call('GET', incarnation .. '.repair') ~= ticket then return '0' end
  redis.call('SET', incarnation, now_in)
  redis.call('DEL', incarnation .. '.repair')
  return '1'
end)
