-- Give the right to repair or to found this node back, see claim.lua. Answers 1 | 0 it was not the asker's
return for_each_key(function(incarnation, ticket)
  if redis.call('GET', incarnation .. '.repair') ~= ticket then return '0' end
  redis.call('DEL', incarnation .. '.repair')
  return '1'
end)
