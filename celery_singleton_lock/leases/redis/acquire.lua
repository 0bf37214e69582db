-- Ask for the lease under KEYS[1]. The rules are those of rules.py; times are µs of the server's clock.
-- Answers {1, fence, takeovers, again} | {0, holder, remaining µs} | {2, position, outcome}
local owner, ttl, position, heir, note, reclaim, waiting, expired_kept_ms, call =
  ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8]),
  ARGV[9]

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- tostring() would round numbers of this size.
local function text(number) return string.format('%.0f', number) end

local record = redis.call('HMGET', KEYS[1],
  'owner', 'fence', 'until', 'parked_until', 'heir', 'position', 'outcome', 'takeovers', 'call')
local last_owner = record[1] or ''
local fence = tonumber(record[2] or 0)
local held_until = tonumber(record[3] or 0)
local parked_until = tonumber(record[4] or 0)
local recorded = tonumber(record[6] or nil)
local takeovers = tonumber(record[8] or 0)

local function keep()
  local ms = math.ceil(ttl / 1000) + expired_kept_ms
  -- A position was promised a life of its own: never shorten it.
  if not recorded or redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms) end
end

local function held(by, remaining)
  if waiting == '1' then redis.call('HSET', KEYS[1], 'awaited', '1') end
  return {0, by, text(remaining)}
end

if position and recorded and recorded >= position then
  return {2, text(recorded), record[7]}
end
if held_until > now then
  if last_owner ~= owner then return held(last_owner, held_until - now) end
  redis.call('HSET', KEYS[1], 'until', text(math.max(held_until, now + ttl)))
  keep()
  -- A reply that was lost, and asked for again within one call, is no second grant.
  return {1, text(fence), takeovers, record[9] == call and 0 or 1}
end
local ran_out = held_until ~= 0
local comes_back = ran_out and last_owner == owner and record[2] == reclaim
if parked_until > now then
  local is_heir = heir ~= '' and record[5] == heir
  if not (is_heir or comes_back) then
    return held(record[5] or last_owner, parked_until - now)
  end
elseif parked_until > 0 then
  redis.call('HDEL', KEYS[1], 'heir', 'parked_until')
end
if reclaim ~= '' and not comes_back then
  return {0, last_owner, '0'}
end
if ran_out and last_owner ~= owner then takeovers = takeovers + 1 end
fence = text(math.max(fence + 1, now))
redis.call('HSET', KEYS[1], 'owner', owner, 'fence', fence, 'until', text(now + ttl),
  'since', text(now), 'takeovers', takeovers, 'note', note, 'call', call)
keep()
return {1, fence, takeovers, 0}
