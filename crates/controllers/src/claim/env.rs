//! Environment variables that a claim sets in the containers of its Pod.

use asb_types::claim::EnvVar;
use asb_types::template::InjectionPolicy;
use serde_json::{Map, Value, json};

use super::problem::Problem;

/// Sets the variables in a Pod spec, as far as the template's policy allows.
pub fn inject(pod: &mut Map<String, Value>, env: &[EnvVar], policy: InjectionPolicy) -> Result<(), Problem> {
    if env.is_empty() {
        return Ok(());
    }
    if policy == InjectionPolicy::Disallowed {
        return Err(Problem::EnvRejected(
            "the template's envVarsInjectionPolicy is Disallowed; it must be Allowed or Overrides".to_owned(),
        ));
    }
    let first = names(pod, "containers").next().map(str::to_owned);
    for variable in env.iter().filter(|variable| !variable.container_name.is_empty()) {
        let known = ["containers", "initContainers"]
            .iter()
            .any(|list| names(pod, list).any(|name| name == variable.container_name));
        if !known {
            return Err(Problem::Mistake(format!(
                "target container {:?} of environment variable {:?} not found in the template",
                variable.container_name, variable.name
            )));
        }
    }
    // Those that name the container come before those that mean it by saying nothing.
    let named = env.iter().filter(|variable| !variable.container_name.is_empty());
    let unnamed = env.iter().filter(|variable| variable.container_name.is_empty());
    for variable in named.chain(unnamed) {
        let target = match variable.container_name.as_str() {
            "" => first.as_deref().ok_or_else(|| {
                Problem::Mistake(format!(
                    "environment variable {:?} has no target: the template has no container",
                    variable.name
                ))
            })?,
            name => name,
        };
        if let Some(container) = container(pod, target) {
            set(container, target, variable, policy)?;
        }
    }
    Ok(())
}

fn set(container: &mut Value, name: &str, variable: &EnvVar, policy: InjectionPolicy) -> Result<(), Problem> {
    let overrides = policy == InjectionPolicy::Overrides;
    // What comes from elsewhere may hold the same name, and nobody can see it from here.
    let from_elsewhere = container["envFrom"].as_array().is_some_and(|sources| !sources.is_empty());
    if from_elsewhere && !overrides {
        return Err(Problem::EnvRejected(format!(
            "container {name:?} uses envFrom; the template's envVarsInjectionPolicy must be Overrides"
        )));
    }
    if !container["env"].is_array() {
        container["env"] = json!([]);
    }
    let wanted = json!({"name": variable.name, "value": variable.value});
    let known = container["env"].as_array_mut().into_iter().flatten();
    match known.into_iter().find(|known| known["name"] == variable.name.as_str()) {
        Some(found) if overrides => *found = wanted,
        Some(_) => {
            return Err(Problem::Mistake(format!(
                "environment variable override not allowed: {:?} is set in container {name:?}; the template's \
                 envVarsInjectionPolicy must be Overrides",
                variable.name
            )));
        }
        None => container["env"].as_array_mut().into_iter().for_each(|list| list.push(wanted.clone())),
    }
    Ok(())
}

fn names<'a>(pod: &'a Map<String, Value>, list: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let containers = pod.get(list).and_then(Value::as_array).into_iter().flatten();
    containers.filter_map(|container| container["name"].as_str())
}

fn container<'a>(pod: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Value> {
    let list = ["containers", "initContainers"]
        .into_iter()
        .find(|list| names(pod, list).any(|known| known == name))?;
    pod.get_mut(list)?.as_array_mut()?.iter_mut().find(|container| container["name"] == name)
}
