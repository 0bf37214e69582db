-- A group meets in the hash KEYS[1]: until when each member lives, and in the field '' a mark that is
-- lost with the hash. Answers {now, mark, members}; a member with a ttl of 0 leaves, '' only looks.
local new_mark, member, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local fields = redis.call('HGETALL', KEYS[1])
local mark, members = false, {}
for at = 1, #fields, 2 do
  local name, value = fields[at], fields[at + 1]
  if name == '' then
    mark = value
  elseif tonumber(value) <= now then
    redis.call('HDEL', KEYS[1], name)
  elseif name ~= member then
    members[#members + 1] = name
  end
end
if not mark then
  mark = new_mark
  redis.call('HSET', KEYS[1], '', mark)
end
if member ~= '' and ttl > 0 then
  redis.call('HSET', KEYS[1], member, string.format('%.0f', now + ttl))
  members[#members + 1] = member
elseif member ~= '' then
  redis.call('HDEL', KEYS[1], member)
end
return {string.format('%.0f', now), mark, members}
