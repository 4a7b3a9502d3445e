//! The addresses behind a Service in one cell: the first three, and the number of the others.

use serde_json::Value;

use super::list;

const SHOWN: usize = 3;

/// `address:port` of those that are ready, of an Endpoints object.
pub(super) fn of_endpoints(endpoints: &Value) -> String {
    let all = list(&endpoints["subsets"]).iter().flat_map(|subset| {
        let addresses = || list(&subset["addresses"]).iter().filter_map(|address| address["ip"].as_str());
        let ports = list(&subset["ports"]);
        let with =
            ports.iter().flat_map(move |port| addresses().map(move |ip| format!("{ip}:{}", port["port"])));
        let without = addresses().filter(|_| ports.is_empty()).map(str::to_owned);
        without.chain(with).collect::<Vec<_>>()
    });
    let all: Vec<_> = all.collect();
    match list(&endpoints["subsets"]).is_empty() {
        true => "<none>".to_owned(),
        false if all.len() > SHOWN => {
            format!("{} + {} more...", all[..SHOWN].join(","), all.len() - SHOWN)
        }
        false => all.join(","),
    }
}

pub(super) fn ports_of_slice(slice: &Value) -> String {
    let ports = list(&slice["ports"]).iter().map(|port| match (&port["port"], &port["name"]) {
        (Value::Number(number), _) => number.to_string(),
        (_, Value::String(name)) => name.clone(),
        _ => "*".to_owned(),
    });
    or_unset(ports.collect())
}

pub(super) fn addresses_of_slice(slice: &Value) -> String {
    let addresses = list(&slice["endpoints"]).iter().flat_map(|endpoint| list(&endpoint["addresses"]));
    or_unset(addresses.filter_map(Value::as_str).map(str::to_owned).collect())
}

fn or_unset(all: Vec<String>) -> String {
    match all.len() {
        0 => "<unset>".to_owned(),
        1..=SHOWN => all.join(","),
        more => format!("{} + {} more...", all[..SHOWN].join(","), more - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_three_are_shown() {
        let endpoints = |count: usize, ports: Value| {
            let addresses: Vec<_> = (0..count).map(|at| json!({ "ip": format!("10.0.0.{at}") })).collect();
            of_endpoints(&json!({ "subsets": [{ "addresses": addresses, "ports": ports }] }))
        };
        assert_eq!(of_endpoints(&json!({})), "<none>");
        assert_eq!(endpoints(2, json!([{ "port": 80 }])), "10.0.0.0:80,10.0.0.1:80");
        assert_eq!(endpoints(2, Value::Null), "10.0.0.0,10.0.0.1");
        let two = json!([{ "port": 80 }, { "port": 81 }]);
        assert_eq!(endpoints(2, two), "10.0.0.0:80,10.0.0.1:80,10.0.0.0:81 + 1 more...");
        let slice = json!({
            "ports": [{ "port": 80 }, { "name": "x" }], "endpoints": [{ "addresses": ["10.0.0.1"] }],
        });
        assert_eq!((ports_of_slice(&slice), addresses_of_slice(&slice)), ("80,x".into(), "10.0.0.1".into()));
        assert_eq!(ports_of_slice(&json!({})), "<unset>");
    }
}
