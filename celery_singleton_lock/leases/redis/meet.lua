-- A group meets in each hash: until when each member lives, and in the field '' a mark that is lost with
-- the hash. Answers the server's time in µs, mark, [member, ...], revision of its book; a member with a ttl
-- of 0 leaves, '' only looks.
local now = clock()

return for_each_key(function(key, new_mark, member, ttl)
  local fields = redis.call('HGETALL', key)
  local mark, members = false, {}
  for at = 1, #fields, 2 do
    local name, value = fields[at], fields[at + 1]
    if name == '' then
      mark = value
    elseif tonumber(value) <= now then
      redis.call('HDEL', key, name)
    elseif name ~= member then
      members[#members + 1] = name
    end
  end
  if not mark then
    mark = new_mark
    redis.call('HSET', key, '', mark)
  end
  if member ~= '' and tonumber(ttl) > 0 then
    redis.call('HSET', key, member, text(now + ttl))
    members[#members + 1] = member
  elseif member ~= '' then
    redis.call('HDEL', key, member)
  end
  local revision = redis.call('ZREVRANGE', key .. '.order', 0, 0, 'WITHSCORES')[2] or 0
  return text(now) .. ',' .. cjson.encode(mark) .. ',' .. cjson.encode(members) .. ',' .. text(revision)
end)
