//! Where a request through `pods/proxy` or `services/proxy` leads: `[scheme:]name[:port]` to a port of one Pod. Pure.

use asb_types::key::MIRROR;
use serde_json::Value;

use crate::endpoints::backend;
use crate::status::ApiError;

/// What the path calls a Pod or Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    pub id: &'a str,
    pub scheme: Scheme,
    pub name: &'a str,
    /// A number, a name, or nothing.
    pub port: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn text(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port of a Pod that names none.
    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl<'a> Named<'a> {
    pub fn parse(id: &'a str) -> Option<Self> {
        let (scheme, name, port) = match *id.split(':').collect::<Vec<_>>() {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        let scheme = match scheme {
            "" | "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        (!name.is_empty()).then_some(Self { id, scheme, name, port })
    }

    /// The port of a Pod: the one that is named, else the first that it has.
    pub fn port_of_pod(&self, pod: &Value) -> Result<u16, ApiError> {
        if !is_reachable(pod) {
            return Err(ApiError::bad_request("address not allowed"));
        }
        if self.port.is_empty() {
            let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
            let first =
                containers.filter_map(|container| container["ports"][0]["containerPort"].as_u64()).next();
            return Ok(first.and_then(|port| u16::try_from(port).ok()).unwrap_or(self.scheme.port()));
        }
        let number = self.port.parse().ok().filter(|port| *port > 0);
        number.ok_or_else(|| unreachable(&format!("{:?} is no port of a Pod: give its number", self.port)))
    }

    /// The port of a Service that is meant.
    pub fn port_of_service(&self, service: &'a Value) -> Result<&'a Value, ApiError> {
        let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
        match self.port.parse::<i64>() {
            Ok(number) => ports.find(|port| port["port"] == number).ok_or_else(|| {
                ApiError::unavailable(format!("no service port {number} found for service {:?}", self.name))
            }),
            Err(_) => ports
                .find(|port| port["name"].as_str().unwrap_or_default() == self.port)
                .ok_or_else(|| self.no_endpoints()),
        }
    }

    /// The Pods of a Service that take new connections, each with its port.
    pub fn ready<'p>(&self, service: &Value, pods: &'p [Value]) -> Result<Vec<(&'p Value, u16)>, ApiError> {
        let service_port = self.port_of_service(service)?;
        let counts = |pod: &Value| is_reachable(pod) && backend::condition(service, pod).is_some();
        if !pods.iter().any(counts) {
            return Err(Self { id: self.name, ..*self }.no_endpoints());
        }
        let ready = |pod: &&Value| {
            is_reachable(pod) && backend::condition(service, pod).is_some_and(|condition| condition.ready)
        };
        let found: Vec<_> = pods
            .iter()
            .filter(ready)
            .filter_map(|pod| Some((pod, backend::port(service_port, pod)?)))
            .collect();
        if found.is_empty() || backend::protocol(service_port) != "TCP" {
            Err(self.no_endpoints())
        } else {
            Ok(found)
        }
    }

    /// The Pods that users wrote into the Endpoints of a Service without a selector, each with its port.
    pub fn written(&self, service: &Value, endpoints: &Value) -> Result<Vec<(String, u16)>, ApiError> {
        let service_port = self.port_of_service(service)?;
        let name = service_port["name"].as_str().unwrap_or_default();
        let mut found = Vec::new();
        for subset in endpoints["subsets"].as_array().into_iter().flatten() {
            let mut ports = subset["ports"].as_array().into_iter().flatten();
            let port = ports.find(|port| port["name"].as_str().unwrap_or_default() == name);
            let port = port.and_then(|port| port["port"].as_u64()).and_then(|port| u16::try_from(port).ok());
            let Some(port) = port else { continue };
            let addresses = subset["addresses"].as_array().into_iter().flatten();
            let pods = addresses.filter(|address| address["targetRef"]["kind"] == "Pod");
            found.extend(
                pods.filter_map(|address| Some((address["targetRef"]["name"].as_str()?.to_owned(), port))),
            );
        }
        if found.is_empty() { Err(self.no_endpoints()) } else { Ok(found) }
    }

    /// What is said when a Service leads to no Pod.
    pub fn no_endpoints(&self) -> ApiError {
        ApiError::unavailable(format!("no endpoints available for service {:?}", self.id))
    }
}

/// In the words of kube-apiserver.
pub fn unreachable(why: &str) -> ApiError {
    ApiError::unavailable(format!("error trying to reach service: {why}"))
}

/// A Pod that is a part of the engine has no address of its own, and can be reached all the same.
fn is_reachable(pod: &Value) -> bool {
    pod["status"]["podIP"].as_str().is_some_and(|address| !address.is_empty())
        || pod["metadata"]["annotations"][MIRROR].is_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message<T: std::fmt::Debug>(result: Result<T, ApiError>) -> (u16, String) {
        result.map_err(|error| (error.code, error.message)).unwrap_err()
    }

    #[test]
    fn scheme_name_and_port_are_told_apart() {
        let parse = |id| Named::parse(id).map(|it| (it.scheme, it.name, it.port));
        assert_eq!(parse("web"), Some((Scheme::Http, "web", "")));
        assert_eq!(parse("web:80"), Some((Scheme::Http, "web", "80")));
        assert_eq!(parse("https:web:"), Some((Scheme::Https, "web", "")));
        assert_eq!(parse(":web:http"), Some((Scheme::Http, "web", "http")));
        for wrong in ["", ":80", "ftp:web:21", "http:web:80:1", "http::80"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_port_of_a_pod_is_the_named_or_its_first() {
        let pod = json!({
            "spec": {"containers": [{}, {"ports": [{"containerPort": 8080}, {"containerPort": 9090}]}]},
            "status": {"podIP": "10.88.0.2"},
        });
        let port = |id: &str, pod: &Value| Named::parse(id).unwrap().port_of_pod(pod);
        assert_eq!(port("web", &pod).unwrap(), 8080);
        assert_eq!(port("web:7", &pod).unwrap(), 7);
        let bare = json!({"spec": {"containers": [{}]}, "status": {"podIP": "10.88.0.2"}});
        assert_eq!((port("web", &bare).unwrap(), port("https:web:", &bare).unwrap()), (80, 443));
        assert_eq!(message(port("web", &json!({}))), (400, "address not allowed".into()));
        for wrong in ["web:http", "web:0", "web:65536"] {
            assert_eq!(message(port(wrong, &pod)).0, 503, "{wrong}");
        }
    }

    #[test]
    fn a_service_leads_to_its_ready_pods() {
        let service = json!({"spec": {"ports": [
            {"name": "http", "port": 80, "targetPort": "web"}, {"name": "dns", "port": 53, "protocol": "UDP"},
        ]}});
        let pod = |name: &str, ready: &str, ip: Option<&str>| {
            json!({
                "metadata": {"name": name},
                "spec": {"containers": [{"ports": [{"name": "web", "containerPort": 8080}]}]},
                "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
            })
        };
        let ip = Some("10.88.0.2");
        let pods =
            [pod("a", "True", ip), pod("b", "False", ip), pod("c", "True", None), pod("d", "True", ip)];
        let found = |id: &str, pods: &[Value]| {
            let found = Named::parse(id).unwrap().ready(&service, pods)?;
            let named = found.into_iter().map(|(pod, port)| (pod["metadata"]["name"].to_string(), port));
            Ok::<_, ApiError>(named.collect::<Vec<_>>())
        };
        let expected = vec![("\"a\"".to_owned(), 8080), ("\"d\"".to_owned(), 8080)];
        assert_eq!(found("svc:80", &pods).unwrap(), expected);
        assert_eq!(found("svc:http", &pods).unwrap(), expected);
        assert_eq!(
            message(found("svc:81", &pods)),
            (503, "no service port 81 found for service \"svc\"".into())
        );
        let no_endpoints = |id: &str| (503, format!("no endpoints available for service {id:?}"));
        assert_eq!(message(found("svc", &pods)), no_endpoints("svc"));
        assert_eq!(message(found("svc:other", &pods)), no_endpoints("svc:other"));
        assert_eq!(message(found("svc:80", &pods[1..3])), no_endpoints("svc:80"));
        assert_eq!(message(found("svc:53", &pods)), no_endpoints("svc:53"));
        assert_eq!(message(found("svc:80", &pods[2..3])), no_endpoints("svc"), "without any address");
    }

    #[test]
    fn endpoints_of_users_lead_to_pods_and_nowhere_else() {
        let service = json!({"spec": {"ports": [{"name": "http", "port": 80}]}});
        let endpoints = json!({"subsets": [
            {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"name": "http", "port": 80}]},
            {"addresses": [{"ip": "10.88.0.2", "targetRef": {"kind": "Pod", "name": "web"}}],
             "ports": [{"name": "other", "port": 1}, {"name": "http", "port": 8080}]},
        ]});
        let named = Named::parse("svc:http").unwrap();
        assert_eq!(named.written(&service, &endpoints).unwrap(), [("web".to_owned(), 8080)]);
        assert_eq!(message(named.written(&service, &json!({}))).0, 503);
    }
}
