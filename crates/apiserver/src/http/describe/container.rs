//! Descriptions of a container and of what belongs to it: variables, ports, probes, hooks, resources, rights, mounts.

use super::Type;

pub(super) const TYPES: &[Type] = &[
    (
        "Container",
        &[
            ("name", "", "Name of the container. Unique in the Pod."),
            (
                "image",
                "",
                "The image with the files and the default command. `host` is the file system of this machine.",
            ),
            (
                "imagePullPolicy",
                "",
                "When the registry is asked for the image: Always, IfNotPresent or Never.",
            ),
            (
                "command",
                "",
                "The program to run instead of the image's entrypoint, with its first arguments.",
            ),
            ("args", "", "Arguments of the program, instead of the image's."),
            ("workingDir", "", "The directory in which the program starts. If absent, the image's."),
            ("env", "EnvVar", "Environment variables. A value may use earlier variables as $(NAME)."),
            ("envFrom", "EnvFrom", "ConfigMaps and Secrets whose entries become environment variables."),
            (
                "ports",
                "Port",
                "Ports that the program listens on. Services and probes can refer to them by name.",
            ),
            (
                "resources",
                "Resources",
                "How much CPU, memory and disk the container needs, and how much it may use.",
            ),
            ("resizePolicy", "ResizePolicy", "Whether a change of a resource restarts the container."),
            (
                "restartPolicy",
                "",
                "Always turns an init container into a sidecar, which runs beside the main containers.",
            ),
            ("restartPolicyRules", "RestartRule", "Exceptions from the restart policy, by exit code."),
            ("volumeMounts", "Mount", "Where volumes of the Pod appear in the container."),
            ("volumeDevices", "Device", "Raw block devices that the container sees."),
            ("livenessProbe", "Probe", "A check that restarts the container when it fails."),
            ("readinessProbe", "Probe", "A check that takes the Pod out of its Services while it fails."),
            ("startupProbe", "Probe", "A check that must succeed once before the other probes begin."),
            (
                "lifecycle",
                "Lifecycle",
                "What to run after the container has started and before it is stopped.",
            ),
            (
                "terminationMessagePath",
                "",
                "A file in the container whose end becomes the message of its terminated state.",
            ),
            (
                "terminationMessagePolicy",
                "",
                "File, or FallbackToLogsOnError: the log is used if the file is empty and the container failed.",
            ),
            (
                "securityContext",
                "Security",
                "The user, capabilities and other rights of the container's processes.",
            ),
            ("stdin", "", "Keeps the standard input open, for `kubectl attach`."),
            ("stdinOnce", "", "Closes the standard input after the first client has detached."),
            ("tty", "", "Gives the program a terminal. Needs stdin."),
            ("targetContainerName", "", "The container that an ephemeral container looks into."),
        ],
    ),
    (
        "EnvVar",
        &[
            ("name", "", "Name of the variable."),
            ("value", "", "The value. $(NAME) stands for an earlier variable, $$(NAME) for the text itself."),
            ("valueFrom", "EnvSource", "Where the value comes from, instead of `value`."),
        ],
    ),
    (
        "EnvSource",
        &[
            ("configMapKeyRef", "KeyRef", "An entry of a ConfigMap."),
            ("secretKeyRef", "KeyRef", "An entry of a Secret."),
            ("fieldRef", "FieldRef", "A field of the Pod itself."),
            ("resourceFieldRef", "ResourceRef", "A request or limit of a container."),
            ("fileKeyRef", "FileRef", "An entry of a file in a volume."),
        ],
    ),
    (
        "KeyRef",
        &[
            ("name", "", "Name of the ConfigMap or Secret."),
            ("key", "", "The key of the entry."),
            ("optional", "", "With true the container starts without the entry if it does not exist."),
        ],
    ),
    (
        "FieldRef",
        &[
            ("apiVersion", "", "The version that the path is written for. v1 unless set."),
            (
                "fieldPath",
                "",
                "The path of the field, such as metadata.name, metadata.labels['KEY'] or status.podIP.",
            ),
        ],
    ),
    (
        "ResourceRef",
        &[
            ("containerName", "", "The container whose resource it is. Needed in volumes."),
            ("resource", "", "The resource, such as limits.cpu or requests.memory."),
            ("divisor", "", "The unit of the value, such as 1Mi. 1 unless set."),
        ],
    ),
    (
        "FileRef",
        &[
            ("volumeName", "", "The volume with the file."),
            ("path", "", "Path of the file in the volume."),
            ("key", "", "The name of the variable in the file."),
            ("optional", "", "With true the container starts without the entry if it does not exist."),
        ],
    ),
    (
        "EnvFrom",
        &[
            ("prefix", "", "A text that is put before every key."),
            ("configMapRef", "OptionalRef", "The ConfigMap with the entries."),
            ("secretRef", "OptionalRef", "The Secret with the entries."),
        ],
    ),
    (
        "OptionalRef",
        &[
            ("name", "", "Name of the object."),
            ("optional", "", "With true the container starts also if the object does not exist."),
        ],
    ),
    (
        "Port",
        &[
            ("name", "", "Name of the port. Unique in the Pod."),
            ("containerPort", "", "The port that the program listens on, 1 to 65535."),
            ("protocol", "", "TCP (the default), UDP or SCTP."),
            ("hostPort", "", "A port of the node that leads to this one. This node refuses it."),
            ("hostIP", "", "The address of the node for hostPort."),
        ],
    ),
    (
        "Resources",
        &[
            (
                "requests",
                "",
                "The least that the container needs: the scheduler finds a node that has it. Limits are taken where it is absent.",
            ),
            ("limits", "", "The most that the container may use, such as cpu: 500m or memory: 256Mi."),
            (
                "claims",
                "ResourceClaimRef",
                "Devices that the container uses, by the names in spec.resourceClaims.",
            ),
        ],
    ),
    (
        "ResourceClaimRef",
        &[
            ("name", "", "A name from spec.resourceClaims of the Pod."),
            ("request", "", "One request of the claim. If absent, all of them."),
        ],
    ),
    (
        "ResizePolicy",
        &[
            ("resourceName", "", "The resource: cpu or memory."),
            ("restartPolicy", "", "NotRequired (the default) or RestartContainer."),
        ],
    ),
    (
        "RestartRule",
        &[
            ("action", "", "What to do when the rule matches: Restart or RestartAllContainers."),
            ("exitCodes", "ExitCodes", "The exit codes that the rule matches."),
        ],
    ),
    ("ExitCodes", &[("operator", "", "In or NotIn."), ("values", "", "Exit codes, 0 to 255.")]),
    (
        "Mount",
        &[
            ("name", "", "Name of a volume of the Pod."),
            ("mountPath", "", "The path in the container at which the volume appears."),
            ("subPath", "", "A path in the volume that is mounted instead of its root."),
            ("subPathExpr", "", "Like subPath, with environment variables as $(NAME)."),
            ("readOnly", "", "With true the container cannot write to the volume."),
            (
                "recursiveReadOnly",
                "",
                "Whether mounts below the volume are read-only as well: Disabled, IfPossible or Enabled.",
            ),
            (
                "mountPropagation",
                "",
                "Whether later mounts are seen: None, HostToContainer or Bidirectional.",
            ),
        ],
    ),
    (
        "Device",
        &[
            ("name", "", "Name of a volume with volumeMode Block."),
            ("devicePath", "", "The path in the container at which the device appears."),
        ],
    ),
    (
        "Probe",
        &[
            ("exec", "Exec", "Runs a command in the container. Exit code 0 is a success."),
            ("httpGet", "HttpGet", "Sends an HTTP GET request. A status from 200 to 399 is a success."),
            ("tcpSocket", "TcpSocket", "Opens a TCP connection."),
            ("grpc", "Grpc", "Calls the health service of gRPC."),
            (
                "initialDelaySeconds",
                "",
                "Seconds from the start of the container to the first check. 0 unless set.",
            ),
            ("periodSeconds", "", "Seconds between two checks. 10 unless set."),
            ("timeoutSeconds", "", "Seconds after which a check counts as failed. 1 unless set."),
            (
                "successThreshold",
                "",
                "The number of successes in a row after which a failed probe is successful again. 1 unless set.",
            ),
            (
                "failureThreshold",
                "",
                "The number of failures in a row after which the probe has failed. 3 unless set.",
            ),
            (
                "terminationGracePeriodSeconds",
                "",
                "Seconds to end when the probe has failed, instead of those of the Pod.",
            ),
        ],
    ),
    (
        "Lifecycle",
        &[
            (
                "postStart",
                "Hook",
                "Runs right after the container has started. If it fails, the container is killed.",
            ),
            ("preStop", "Hook", "Runs before the container is stopped, within the grace period."),
            ("stopSignal", "", "The signal that stops the container, instead of the image's."),
        ],
    ),
    (
        "Hook",
        &[
            ("exec", "Exec", "Runs a command in the container."),
            ("httpGet", "HttpGet", "Sends an HTTP GET request."),
            ("sleep", "Sleep", "Waits."),
            ("tcpSocket", "TcpSocket", "Not supported; kept for old manifests."),
        ],
    ),
    ("Exec", &[("command", "", "The program and its arguments. No shell is involved.")]),
    (
        "HttpGet",
        &[
            ("path", "", "Path of the URL. / unless set."),
            ("port", "", "The port, by number or by its name in the container."),
            ("host", "", "The host to connect to. The address of the Pod unless set."),
            ("scheme", "", "HTTP (the default) or HTTPS. Certificates are not checked."),
            ("httpHeaders", "NameValue", "Headers to send with the request."),
        ],
    ),
    ("NameValue", &[("name", "", "The name."), ("value", "", "The value.")]),
    (
        "TcpSocket",
        &[
            ("port", "", "The port, by number or by its name in the container."),
            ("host", "", "The host to connect to. The address of the Pod unless set."),
        ],
    ),
    (
        "Grpc",
        &[
            ("port", "", "The number of the port."),
            ("service", "", "The service whose health is asked for. If absent, that of the whole server."),
        ],
    ),
    ("Sleep", &[("seconds", "", "The number of seconds.")]),
    (
        "Security",
        &[
            (
                "allowPrivilegeEscalation",
                "",
                "With false a process cannot get more rights than its parent has.",
            ),
            ("appArmorProfile", "Profile", "The AppArmor profile of the processes."),
            ("capabilities", "Capabilities", "Capabilities to add to the default ones, or to take away."),
            ("privileged", "", "Gives the container every capability. Needs `asb up --allow-privileged`."),
            ("procMount", "", "Which parts of /proc are hidden: Default or Unmasked."),
            ("readOnlyRootFilesystem", "", "With true the container can write to volumes only."),
            ("runAsUser", "", "The user id of the processes, instead of the image's."),
            ("runAsGroup", "", "The group id of the processes."),
            ("runAsNonRoot", "", "With true the container does not start as root."),
            ("seLinuxOptions", "SeLinux", "The SELinux label of the processes."),
            ("seccompProfile", "Profile", "The seccomp profile, which restricts system calls."),
            ("windowsOptions", "Windows", "Settings for Windows."),
        ],
    ),
    (
        "Profile",
        &[
            ("type", "", "RuntimeDefault, Unconfined or Localhost."),
            ("localhostProfile", "", "The profile of the node that is used, for type Localhost."),
        ],
    ),
    (
        "Capabilities",
        &[
            ("add", "", "Capabilities to add, without the prefix CAP_."),
            ("drop", "", "Capabilities to take away. ALL takes all of them away."),
        ],
    ),
    (
        "SeLinux",
        &[
            ("user", "", "The user of the label."),
            ("role", "", "The role of the label."),
            ("type", "", "The type of the label."),
            ("level", "", "The level of the label."),
        ],
    ),
    (
        "Windows",
        &[
            ("gmsaCredentialSpec", "", "The GMSA credential specification."),
            ("gmsaCredentialSpecName", "", "Name of the GMSA credential specification."),
            ("hostProcess", "", "Whether the container runs as a process of the host."),
            ("runAsUserName", "", "The user name in Windows."),
        ],
    ),
];
