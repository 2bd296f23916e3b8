-- The health of an LLMService for Argo CD: docs/gitops.md has the place for it.
-- The conditions are of the last generation that the operator observed. Before it observed this one they do not apply.
local health = {status = "Progressing", message = "Waiting for the operator"}
if obj.spec ~= nil and obj.spec.paused == true then
  health.status = "Suspended"
  health.message = "spec.paused is true"
end
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end
local conditions = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  conditions[condition.type] = condition
end
if conditions.Ready ~= nil then
  health.message = conditions.Ready.reason .. ": " .. conditions.Ready.message
end
if health.status == "Suspended" then
  return health
end
if conditions.Stalled ~= nil and conditions.Stalled.status == "True" then
  health.status = "Degraded"
elseif conditions.Ready ~= nil and conditions.Ready.status == "True" then
  health.status = "Healthy"
end
return health
