-- Argo CD's health of a ServingDeployment. It agrees with kstatus, which Flux and kubectl use, and
-- adds Suspended.
local health = {status = "Progressing", message = "the operator has not seen this version yet"}
if obj.status == nil or obj.status.conditions == nil
  or obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end
local conditions = {}
for _, condition in ipairs(obj.status.conditions) do
  conditions[condition.type] = condition
end
local function holds(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end
local function say(status, kind)
  local condition = conditions[kind] or {reason = "Unknown", message = "the condition is missing"}
  return {status = status, message = condition.reason .. ": " .. condition.message}
end
local rollout = obj.spec.rollout
if obj.spec.paused then
  return {status = "Suspended", message = "spec.paused is true"}
elseif holds("Stalled") then
  return say("Degraded", "Stalled")
elseif rollout ~= nil and rollout.paused and not holds("RolledOut") then
  return say("Suspended", "RolledOut")
elseif holds("Reconciling") then
  return say("Progressing", "Reconciling")
elseif holds("Ready") then
  return say("Healthy", "Ready")
end
return say("Progressing", "Ready")
