//! From the fields of a container to its hooks and probes. Pure.

use std::time::Duration;

use k8s_openapi::api::core::v1::{self, Container, HTTPGetAction, LifecycleHandler, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Action, Care, Kind, Probe, Request};
use crate::pod::container::{Role, Slot};
use crate::pod::spec::Refusal;

/// Hooks and probes of a container, or the field that cannot be what it is.
pub fn care(pod: &Pod, slot: Slot) -> Result<Care, Refusal> {
    let Some(container) = slot.of(pod) else { return Ok(Care::default()) };
    let reader = Reader { container, path: slot.path() };
    let care = reader.care().map_err(|message| Refusal::new("Unsupported", message))?;
    if slot.role(pod) == Role::Init && care != Care::default() {
        let message = format!(
            "{}: hooks and probes are for containers that stay; set restartPolicy: Always or remove them",
            reader.path
        );
        return Err(Refusal::new("Unsupported", message));
    }
    Ok(care)
}

struct Reader<'a> {
    container: &'a Container,
    path: String,
}

impl Reader<'_> {
    fn care(&self) -> Result<Care, String> {
        let lifecycle = self.container.lifecycle.as_ref();
        let hook = |handler: Option<&LifecycleHandler>, field: &str| {
            handler.map(|handler| self.hook(handler, &format!("{}.lifecycle.{field}", self.path))).transpose()
        };
        let probe = |probe: &Option<v1::Probe>, field: &str, kind| {
            probe.as_ref().map(|probe| self.probe(probe, &format!("{}.{field}", self.path), kind)).transpose()
        };
        Ok(Care {
            post_start: hook(lifecycle.and_then(|it| it.post_start.as_ref()), "postStart")?,
            pre_stop: hook(lifecycle.and_then(|it| it.pre_stop.as_ref()), "preStop")?,
            startup: probe(&self.container.startup_probe, "startupProbe", Kind::Startup)?,
            readiness: probe(&self.container.readiness_probe, "readinessProbe", Kind::Readiness)?,
            liveness: probe(&self.container.liveness_probe, "livenessProbe", Kind::Liveness)?,
        })
    }

    fn hook(&self, handler: &LifecycleHandler, path: &str) -> Result<Action, String> {
        if handler.tcp_socket.is_some() {
            return Err(format!("{path}.tcpSocket: no hook can be one; use exec, httpGet or sleep"));
        }
        if let Some(exec) = &handler.exec {
            return command(exec.command.as_deref(), path);
        }
        if let Some(get) = &handler.http_get {
            return self.http(get, &format!("{path}.httpGet"));
        }
        match &handler.sleep {
            Some(sleep) => {
                Ok(Action::Sleep(whole(Some(sleep.seconds), 0, &format!("{path}.sleep.seconds"))?))
            }
            None => Err(format!("{path}: needs exec, httpGet or sleep")),
        }
    }

    fn probe(&self, probe: &v1::Probe, path: &str, kind: Kind) -> Result<Probe, String> {
        let number = |value: Option<i32>, default: i64, field: &str| {
            // 0 asks for the default, as in the API.
            let value = value.map(i64::from).filter(|value| *value != 0);
            whole(value, default, &format!("{path}.{field}"))
        };
        let count = |value: Option<i32>, default: i64, field: &str| {
            number(value, default, field).map(|it| u32::try_from(it.as_secs()).unwrap_or(u32::MAX))
        };
        let successes = count(probe.success_threshold, 1, "successThreshold")?;
        if successes != 1 && kind != Kind::Readiness {
            return Err(format!("{path}.successThreshold: must be 1"));
        }
        let grace = probe.termination_grace_period_seconds;
        if grace.is_some() && kind == Kind::Readiness {
            return Err(format!("{path}.terminationGracePeriodSeconds: a readiness probe ends nothing"));
        }
        let grace_field = format!("{path}.terminationGracePeriodSeconds");
        Ok(Probe {
            action: self.action(probe, path)?,
            delay: number(probe.initial_delay_seconds, 0, "initialDelaySeconds")?,
            period: number(probe.period_seconds, 10, "periodSeconds")?,
            timeout: number(probe.timeout_seconds, 1, "timeoutSeconds")?,
            successes,
            failures: count(probe.failure_threshold, 3, "failureThreshold")?,
            grace: grace.map(|seconds| whole(Some(seconds), 0, &grace_field)).transpose()?,
        })
    }

    fn action(&self, probe: &v1::Probe, path: &str) -> Result<Action, String> {
        if let Some(exec) = &probe.exec {
            return command(exec.command.as_deref(), path);
        }
        if let Some(get) = &probe.http_get {
            return self.http(get, &format!("{path}.httpGet"));
        }
        if let Some(tcp) = &probe.tcp_socket {
            let path = format!("{path}.tcpSocket");
            own_host(tcp.host.as_deref(), &path)?;
            return Ok(Action::Tcp(self.port(&tcp.port, &path)?));
        }
        let grpc = probe.grpc.as_ref();
        let grpc = grpc.ok_or_else(|| format!("{path}: needs exec, httpGet, tcpSocket or grpc"))?;
        let port = self.port(&IntOrString::Int(grpc.port), &format!("{path}.grpc"))?;
        Ok(Action::Grpc { port, service: grpc.service.clone().unwrap_or_default() })
    }

    fn http(&self, get: &HTTPGetAction, path: &str) -> Result<Action, String> {
        let tls = match get.scheme.as_deref() {
            None | Some("" | "HTTP") => false,
            Some("HTTPS") => true,
            Some(other) => return Err(format!("{path}.scheme: {other:?} is not known; use HTTP or HTTPS")),
        };
        own_host(get.host.as_deref(), path)?;
        let given = get.path.as_deref().unwrap_or_default();
        let path_and_query = format!("{}{given}", if given.starts_with('/') { "" } else { "/" });
        if path_and_query.parse::<hyper::Uri>().is_err() {
            return Err(format!("{path}.path: {given:?} is not the path of a URL"));
        }
        let port = self.port(&get.port, path)?;
        let headers = get.http_headers.iter().flatten().map(|it| (it.name.clone(), it.value.clone()));
        let (host, headers): (Vec<_>, Vec<_>) =
            headers.partition(|(name, _)| name.eq_ignore_ascii_case("host"));
        let named =
            get.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| "localhost".to_owned());
        let host = host.into_iter().next_back().map_or_else(|| format!("{named}:{port}"), |(_, value)| value);
        Ok(Action::Http(Request { port, tls, path: path_and_query, host, headers }))
    }

    /// A number, or the name of one of the container's ports.
    fn port(&self, port: &IntOrString, path: &str) -> Result<u16, String> {
        let number = match port {
            IntOrString::Int(number) => *number,
            IntOrString::String(name) => {
                let mut ports = self.container.ports.iter().flatten();
                let known = ports.find(|it| it.name.as_ref() == Some(name)).map(|it| it.container_port);
                known
                    .or_else(|| name.parse().ok())
                    .ok_or_else(|| format!("{path}.port: the container has no port named {name:?}"))?
            }
        };
        let port = u16::try_from(number).ok().filter(|port| *port != 0);
        port.ok_or_else(|| format!("{path}.port: {number} is not a port"))
    }
}

/// Asking others is how a Pod could look around where it must not.
fn own_host(host: Option<&str>, path: &str) -> Result<(), String> {
    match host {
        None | Some("" | "localhost" | "127.0.0.1" | "::1") => Ok(()),
        Some(other) => Err(format!(
            "{path}.host: {other:?} is not the Pod itself, which is all that is asked; remove the field"
        )),
    }
}

fn command(command: Option<&[String]>, path: &str) -> Result<Action, String> {
    match command {
        Some([_, ..]) => Ok(Action::Exec(command.unwrap_or_default().to_vec())),
        _ => Err(format!("{path}.exec.command: at least one word is required")),
    }
}

fn whole(value: Option<i64>, default: i64, path: &str) -> Result<Duration, String> {
    let value = value.unwrap_or(default);
    u64::try_from(value).map(Duration::from_secs).map_err(|_| format!("{path}: {value} is negative"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(container: Value) -> Result<Care, Refusal> {
        let mut object = json!({"name": "main", "ports": [{"name": "web", "containerPort": 8080}]});
        object.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        let pod = json!({"spec": {"containers": [object]}});
        care(&serde_json::from_value(pod).unwrap(), Slot::Main(0))
    }

    #[test]
    fn probes_have_the_defaults_of_the_api() {
        let probe = of(json!({"livenessProbe": {"tcpSocket": {"port": "web"}}})).unwrap().liveness.unwrap();
        let seconds = [probe.delay, probe.period, probe.timeout].map(|it| it.as_secs());
        assert_eq!((seconds, probe.successes, probe.failures), ([0, 10, 1], 1, 3));
        assert_eq!((probe.action, probe.grace), (Action::Tcp(8080), None));
    }

    #[test]
    fn requests_have_path_host_and_headers() {
        let get = json!({"path": "up?a=b", "port": 80, "scheme": "HTTPS", "httpHeaders": [
            {"name": "X-A", "value": "1"}, {"name": "host", "value": "box.test"},
        ]});
        let care = of(json!({"readinessProbe": {"httpGet": get}})).unwrap();
        let expected = Request {
            port: 80,
            tls: true,
            path: "/up?a=b".into(),
            host: "box.test".into(),
            headers: vec![("X-A".into(), "1".into())],
        };
        assert_eq!(care.readiness.unwrap().action, Action::Http(expected));
        let plain = of(json!({"readinessProbe": {"httpGet": {"port": 80}}})).unwrap().readiness.unwrap();
        assert!(matches!(plain.action, Action::Http(it) if it.host == "localhost:80" && it.path == "/"));
    }

    #[test]
    fn hooks_are_commands_requests_or_pauses() {
        let hooks = json!({"postStart": {"sleep": {"seconds": 2}}, "preStop": {"exec": {"command": ["x"]}}});
        let care = of(json!({"lifecycle": hooks})).unwrap();
        assert_eq!(care.post_start, Some(Action::Sleep(Duration::from_secs(2))));
        assert_eq!(care.pre_stop, Some(Action::Exec(vec!["x".into()])));
    }

    #[test]
    fn what_cannot_be_is_refused_by_the_field() {
        for (container, field) in [
            (json!({"livenessProbe": {}}), "spec.containers[0].livenessProbe: "),
            (
                json!({"livenessProbe": {"tcpSocket": {"port": "x"}}}),
                "spec.containers[0].livenessProbe.tcpSocket.port: ",
            ),
            (
                json!({"startupProbe": {"httpGet": {"port": 80, "host": "10.0.0.1"}}}),
                "spec.containers[0].startupProbe.httpGet.host: ",
            ),
            (json!({"livenessProbe": {"grpc": {"port": 0}}}), "spec.containers[0].livenessProbe.grpc.port: "),
            (
                json!({"livenessProbe": {"grpc": {"port": 1}, "successThreshold": 2}}),
                "spec.containers[0].livenessProbe.successThreshold: ",
            ),
            (
                json!({"lifecycle": {"preStop": {"tcpSocket": {"port": 1}}}}),
                "spec.containers[0].lifecycle.preStop.tcpSocket: ",
            ),
            (
                json!({"lifecycle": {"postStart": {"exec": {"command": []}}}}),
                "spec.containers[0].lifecycle.postStart.exec.command: ",
            ),
        ] {
            let refused = of(container).unwrap_err();
            assert!(refused.message.starts_with(field), "{refused:?}");
        }
        let pod = json!({"spec": {"containers": [], "initContainers": [
            {"name": "a", "livenessProbe": {"grpc": {"port": 1}}},
        ]}});
        let refused = care(&serde_json::from_value(pod).unwrap(), Slot::Init(0)).unwrap_err();
        assert!(refused.message.starts_with("spec.initContainers[0]: "), "{refused:?}");
    }
}
