-- Answers {now, mark}: the server's time in µs, and a mark that a flush of the data takes away
local mark = redis.call('GET', KEYS[1])
if not mark then
  mark = ARGV[1]
  redis.call('SET', KEYS[1], mark)
end
local time = redis.call('TIME')
return {string.format('%.0f', time[1] * 1000000 + time[2]), mark}
