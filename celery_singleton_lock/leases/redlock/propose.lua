-- Phase 1: take the lease under each key for an owner, if it is free. If the guessed fence raises the counter,
-- and is about the time, that is phase 2 as well. Otherwise the record is `pending`: the fence beside it is
-- an earlier grant's. It says so by `pending` being equal to `fence`, so that whatever raises the fence ends it.
-- `claim` names the attempt that took it, and says whether the one before it had run out.
-- Answers a vote, see quorum.py

-- How far a guessed fence may be from this node's time. If all nodes forget, fences begin anew from the time: they
-- grow all the same, as it takes longer than this until people have noticed.
local guess_within = 1000000
-- For so long after a grant it may yet be withdrawn, for want of a majority.
local news_for = 100000

local call, attempt, guess, pending_for, expired_kept_ms = unpack(ARGV, guard_at - 6, guard_at - 2)
local now = clock()
local now_text = text(now)
local claim = call .. ' ' .. attempt
local guessed = tonumber(guess)
local may_guess = math.abs(guessed - now) < guess_within
local plain_grant = '3,' .. guess .. ',0,0,' .. guess

-- Most requests of a batch have one ttl: compute what follows from it once.
local last_ttl, until_number, until_text, keep_ms
local function reckon(ttl)
  last_ttl = ttl
  until_number = now + ttl
  until_text = text(until_number)
  keep_ms = math.ceil(ttl / 1000) + expired_kept_ms
end

local function keep(key, recorded)
  -- A position was promised a life of its own: never shorten it.
  if not recorded or redis.call('PTTL', key) < keep_ms then redis.call('PEXPIRE', key, keep_ms) end
end

local function held(by, remaining, kind, counter)
  return '0,' .. text(remaining) .. ',' .. cjson.encode(by) .. ',' .. kind .. ',' .. counter
end

local function propose(key, owner, ttl, position, heir, note, reclaim, index)
  if ttl ~= last_ttl then reckon(ttl) end
  local record = redis.call('HMGET', key, 'until', 'fence', 'position', 'parked_until', 'takeovers', 'pending')
  local held_until, counter, recorded = record[1], record[2] or '0', record[3]
  local takeovers = record[5] or '0'
  local since

  if recorded and position ~= '' and tonumber(recorded) >= tonumber(position) then
    local outcome = redis.call('HMGET', key, 'outcome')[1]
    return '2,' .. text(recorded) .. ',' .. cjson.encode(outcome or '') .. ',0,' .. counter
  end
  local ran_out = held_until and held_until ~= '0'
  local parked_until = record[4] and tonumber(record[4])
  if ran_out or parked_until or reclaim ~= '' then
    held_until = tonumber(held_until or 0)
    parked_until = parked_until or 0
    local known = redis.call('HMGET', key, 'owner', 'heir', 'call', 'claim', 'since')
    local last_owner = known[1] or ''
    local is_pending = record[6] == counter
    local claimed_by, claimed_attempt, lapsed = (known[4] or ''):match('^(%S*) ?(%d*)(.*)$')
    if held_until > now then
      local is_older = claimed_by == call and tonumber(attempt) < tonumber(claimed_attempt)
      if last_owner ~= owner or (is_pending and is_older) then
        local is_news = now - tonumber(known[5] or 0) < news_for
        return held(last_owner, held_until - now, is_pending and '0' or is_news and '2' or '1', counter)
      end
      if not is_pending then
        -- The owner asks again. Its earlier calls can no more withdraw it; nor can this one, which did
        -- not make the grant.
        local is_next = claimed_by == call and not is_older
        if is_next or (claimed_by ~= call and known[3] ~= call) then
          redis.call('HSET', key, 'claim', claim .. lapsed)
        end
        if until_number > held_until then
          redis.call('HSET', key, 'until', until_text)
          list(index, key, until_text)
        end
        keep(key, recorded)
        return '3,' .. counter .. ',' .. takeovers .. (known[3] == call and ',0,' or ',1,') .. counter
      end
      -- Sent twice: the same answer, or two requests of one call would be given two fences.
      if claimed_by == call and claimed_attempt == attempt then since = known[5] end
    end
    local comes_back = ran_out and not is_pending and last_owner == owner and counter == reclaim
    if parked_until > now then
      local is_heir = heir ~= '' and known[2] == heir
      if not (is_heir or comes_back) then
        return held(known[2] or last_owner, parked_until - now, '1', counter)
      end
    elseif parked_until > 0 then
      redis.call('HDEL', key, 'heir', 'parked_until')
    end
    if reclaim ~= '' and not comes_back and not (is_pending and claimed_by == call) then
      return held(last_owner, 0, '1', counter)
    end
    if ran_out and not is_pending and last_owner ~= owner then
      takeovers = text(takeovers + 1)
      redis.call('HSET', key, 'takeovers', takeovers)
    end
  end
  if may_guess and tonumber(counter) < guessed then
    redis.call('HSET', key, 'owner', owner, 'fence', guess, 'until', until_text, 'since', now_text,
      'note', note, 'claim', ran_out and claim .. ' lapsed' or claim, 'call', call)
    list(index, key, until_text)
    keep(key, recorded)
    return takeovers == '0' and plain_grant or '3,' .. guess .. ',' .. takeovers .. ',0,' .. guess
  end
  since = since or now_text
  redis.call('HSET', key, 'owner', owner, 'until', text(now + math.min(ttl, pending_for)), 'since', since,
    'note', note, 'claim', ran_out and claim .. ' lapsed' or claim, 'pending', counter, 'fence', counter)
  keep(key, recorded)
  local base = tonumber(counter) > tonumber(since) and counter or since
  return '1,' .. base .. ',' .. takeovers .. ',0,' .. counter
end

return for_each_key(propose)
