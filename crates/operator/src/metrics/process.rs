//! What the process itself uses, read from /proc at every scrape. Where there is none, nothing is told.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

#[derive(Debug)]
pub struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(usage) = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| parse(&stat))
        else {
            return Ok(());
        };
        let help = "Processor time used";
        let metric =
            encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(usage.cpu_seconds).encode(metric)?;
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Memory in use", usage.resident),
            ("process_virtual_memory_bytes", "Address space in use", usage.virtual_memory),
            ("process_open_fds", "Open file descriptors", open),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq)]
struct Usage {
    cpu_seconds: f64,
    virtual_memory: u64,
    resident: u64,
}

/// Reads a line as proc(5) describes it. The name, second in the line, may hold spaces and brackets.
fn parse(stat: &str) -> Option<Usage> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // The third field of the line comes first here.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Usage {
        cpu_seconds: (field(14)? + field(15)?) as f64 / rustix::param::clock_ticks_per_second() as f64,
        virtual_memory: field(23)?,
        resident: field(24)? * rustix::param::page_size() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_read_whatever_the_program_is_called() {
        let line = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 3 0 5 4096 3 18446744073709551615";
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let resident = 3 * rustix::param::page_size() as u64;
        assert_eq!(parse(line), Some(Usage { cpu_seconds: 200.0 / ticks, virtual_memory: 4096, resident }));
        assert_eq!(parse("nonsense"), None);
    }
}
