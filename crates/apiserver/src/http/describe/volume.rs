//! Descriptions of volumes, of claims, and of the rules of a NetworkPolicy.

use super::Type;

pub(super) const TYPES: &[Type] = &[
    (
        "Volume",
        &[
            ("name", "", "The name that containers mount the volume by. Unique in the Pod."),
            ("emptyDir", "EmptyDir", "A directory that is empty at first and goes with the Pod."),
            ("configMap", "ConfigMapVolume", "Files from the entries of a ConfigMap."),
            ("secret", "SecretVolume", "Files from the entries of a Secret."),
            ("downwardAPI", "DownwardVolume", "Files with fields of the Pod."),
            ("projected", "Projected", "Files from several sources in one directory."),
            (
                "persistentVolumeClaim",
                "ClaimVolume",
                "The volume of a PersistentVolumeClaim in the namespace.",
            ),
            (
                "ephemeral",
                "Ephemeral",
                "A volume with a PersistentVolumeClaim of its own, which is deleted with the Pod. This node refuses it.",
            ),
            (
                "hostPath",
                "HostPath",
                "A directory or file of the node, below `asb up --allow-host-path DIR`.",
            ),
            ("image", "ImageVolume", "The files of an image. This node refuses it."),
            ("csi", "Csi", "A volume of a CSI driver. This node refuses it."),
            ("nfs", "Nfs", "A directory of an NFS server. This node refuses it."),
            ("iscsi", "", "A disk by iSCSI. This node refuses it."),
            ("fc", "", "A disk by Fibre Channel. This node refuses it."),
            ("awsElasticBlockStore", "", "A disk of AWS. Removed from Kubernetes; use a CSI driver."),
            ("azureDisk", "", "A disk of Azure. Removed from Kubernetes; use a CSI driver."),
            ("azureFile", "", "A file share of Azure. Removed from Kubernetes; use a CSI driver."),
            ("cephfs", "", "A CephFS file system. Removed from Kubernetes; use a CSI driver."),
            ("cinder", "", "A disk of OpenStack. Removed from Kubernetes; use a CSI driver."),
            ("flexVolume", "", "A volume of a FlexVolume driver. Deprecated; use a CSI driver."),
            ("flocker", "", "A Flocker dataset. Removed from Kubernetes."),
            ("gcePersistentDisk", "", "A disk of Google Cloud. Removed from Kubernetes; use a CSI driver."),
            (
                "gitRepo",
                "",
                "A clone of a Git repository. Removed from Kubernetes; clone it in an init container.",
            ),
            ("glusterfs", "", "A GlusterFS file system. Removed from Kubernetes; use a CSI driver."),
            ("photonPersistentDisk", "", "A disk of Photon. Removed from Kubernetes."),
            ("portworxVolume", "", "A volume of Portworx. Removed from Kubernetes; use a CSI driver."),
            ("quobyte", "", "A volume of Quobyte. Removed from Kubernetes; use a CSI driver."),
            ("rbd", "", "A Ceph block device. Removed from Kubernetes; use a CSI driver."),
            ("scaleIO", "", "A volume of ScaleIO. Removed from Kubernetes."),
            ("storageos", "", "A volume of StorageOS. Removed from Kubernetes; use a CSI driver."),
            ("vsphereVolume", "", "A disk of vSphere. Removed from Kubernetes; use a CSI driver."),
        ],
    ),
    (
        "EmptyDir",
        &[
            ("medium", "", "Empty for the disk (the default), Memory for a file system in memory."),
            ("sizeLimit", "", "The most that may be in the directory. A Pod with more is evicted."),
        ],
    ),
    (
        "ConfigMapVolume",
        &[
            ("name", "", "Name of the ConfigMap."),
            ("items", "Item", "Which entries become files. If absent, all of them."),
            ("defaultMode", "", "Mode of the files. 0644 unless set."),
            ("optional", "", "With true the Pod starts also if the ConfigMap or an entry does not exist."),
        ],
    ),
    (
        "SecretVolume",
        &[
            ("secretName", "", "Name of the Secret."),
            ("items", "Item", "Which entries become files. If absent, all of them."),
            ("defaultMode", "", "Mode of the files. 0644 unless set."),
            ("optional", "", "With true the Pod starts also if the Secret or an entry does not exist."),
        ],
    ),
    (
        "Item",
        &[
            ("key", "", "The key of the entry."),
            ("path", "", "Path of the file in the volume."),
            ("mode", "", "Mode of the file, instead of the default."),
        ],
    ),
    (
        "DownwardVolume",
        &[
            ("items", "DownwardItem", "The files."),
            ("defaultMode", "", "Mode of the files. 0644 unless set."),
        ],
    ),
    (
        "DownwardItem",
        &[
            ("path", "", "Path of the file in the volume."),
            ("fieldRef", "FieldRef", "A field of the Pod."),
            ("resourceFieldRef", "ResourceRef", "A request or limit of a container."),
            ("mode", "", "Mode of the file, instead of the default."),
        ],
    ),
    (
        "Projected",
        &[
            ("sources", "Source", "Where the files come from."),
            ("defaultMode", "", "Mode of the files. 0644 unless set."),
        ],
    ),
    (
        "Source",
        &[
            ("configMap", "ProjectedObject", "Files from the entries of a ConfigMap."),
            ("secret", "ProjectedObject", "Files from the entries of a Secret."),
            ("downwardAPI", "DownwardVolume", "Files with fields of the Pod."),
            ("serviceAccountToken", "Token", "A token of the ServiceAccount. Not given on one machine."),
            ("clusterTrustBundle", "Trust", "Certificates of authorities from ClusterTrustBundles."),
            ("podCertificate", "Certificate", "A certificate and a key for the Pod."),
        ],
    ),
    (
        "ProjectedObject",
        &[
            ("name", "", "Name of the object."),
            ("items", "Item", "Which entries become files. If absent, all of them."),
            ("optional", "", "With true the Pod starts also if the object or an entry does not exist."),
        ],
    ),
    (
        "Token",
        &[
            ("audience", "", "The service that the token is for. The API server unless set."),
            ("expirationSeconds", "", "Seconds for which a token is valid. 3600 unless set."),
            ("path", "", "Path of the file in the volume."),
        ],
    ),
    (
        "Trust",
        &[
            ("name", "", "Name of one ClusterTrustBundle."),
            ("signerName", "", "The signer whose bundles are used, instead of a name."),
            ("labelSelector", "Selector", "Which bundles of the signer are used."),
            ("optional", "", "With true the Pod starts also if there are no bundles."),
            ("path", "", "Path of the file in the volume."),
        ],
    ),
    (
        "Certificate",
        &[
            ("signerName", "", "The signer of the certificate."),
            ("keyType", "", "Type of the key, such as ED25519."),
            ("maxExpirationSeconds", "", "The most seconds for which a certificate is valid."),
            ("credentialBundlePath", "", "Path of a file with the key and the certificates."),
            ("keyPath", "", "Path of a file with the key."),
            ("certificateChainPath", "", "Path of a file with the certificates."),
            ("userAnnotations", "", "Data for the signer."),
        ],
    ),
    (
        "ClaimVolume",
        &[
            ("claimName", "", "Name of the PersistentVolumeClaim."),
            ("readOnly", "", "With true no container can write to the volume."),
        ],
    ),
    ("Ephemeral", &[("volumeClaimTemplate", "ClaimTemplate", "The claim that is created with the Pod.")]),
    (
        "ClaimTemplate",
        &[
            ("metadata", "", "Labels and annotations of the claim."),
            ("spec", "ClaimSpec", "The spec of the claim."),
        ],
    ),
    (
        "HostPath",
        &[
            ("path", "", "The path on the node."),
            (
                "type",
                "",
                "What must be there, such as Directory, DirectoryOrCreate, File or FileOrCreate. Anything unless set.",
            ),
        ],
    ),
    (
        "ImageVolume",
        &[
            ("reference", "", "Name of the image."),
            ("pullPolicy", "", "When the registry is asked for the image: Always, IfNotPresent or Never."),
        ],
    ),
    (
        "Csi",
        &[
            ("driver", "", "Name of the driver."),
            ("fsType", "", "The file system of the volume."),
            ("readOnly", "", "With true no container can write to the volume."),
            ("volumeAttributes", "", "Settings for the driver."),
            ("nodePublishSecretRef", "Named", "A Secret for the driver."),
        ],
    ),
    (
        "Nfs",
        &[
            ("server", "", "Name or address of the server."),
            ("path", "", "The directory of the server."),
            ("readOnly", "", "With true no container can write to the volume."),
        ],
    ),
    (
        "ClaimSpec",
        &[
            (
                "accessModes",
                "",
                "How the volume will be mounted: ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod.",
            ),
            ("resources", "ClaimResources", "The size of the volume: requests.storage."),
            (
                "storageClassName",
                "",
                "The StorageClass that provides the volume. If absent, the default class; if empty, none.",
            ),
            ("volumeName", "", "The PersistentVolume that the claim is bound to."),
            ("volumeMode", "", "Filesystem (the default), or Block for a raw device."),
            ("selector", "Selector", "Labels that the PersistentVolume must have."),
            (
                "dataSource",
                "DataSource",
                "Another claim of the namespace that the volume starts as a copy of.",
            ),
            ("dataSourceRef", "DataSource", "Like dataSource, for more kinds."),
            ("volumeAttributesClassName", "", "The VolumeAttributesClass with settings of the volume."),
        ],
    ),
    (
        "ClaimResources",
        &[
            ("requests", "", "The least size, such as storage: 1Gi."),
            ("limits", "", "The most that the volume may have."),
        ],
    ),
    (
        "DataSource",
        &[
            ("apiGroup", "", "The API group of the object. Empty for core/v1."),
            ("kind", "", "Kind of the object: PersistentVolumeClaim."),
            ("name", "", "Name of the object."),
            ("namespace", "", "Namespace of the object. That of the claim unless set."),
        ],
    ),
    (
        "NetworkPolicySpec",
        &[
            (
                "podSelector",
                "Selector",
                "The Pods that the policy is for. An empty selector matches all Pods of the namespace.",
            ),
            ("policyTypes", "", "The directions that the policy is about: Ingress, Egress or both."),
            ("ingress", "Ingress", "Connections to the Pods that are allowed. An empty list allows none."),
            ("egress", "Egress", "Connections from the Pods that are allowed. An empty list allows none."),
        ],
    ),
    (
        "Ingress",
        &[
            ("from", "Peer", "Peers that may connect. If absent, all."),
            ("ports", "PolicyPort", "Ports of the Pods that may be connected to. If absent, all."),
        ],
    ),
    (
        "Egress",
        &[
            ("to", "Peer", "Peers that may be connected to. If absent, all."),
            ("ports", "PolicyPort", "Ports of the peers that may be connected to. If absent, all."),
        ],
    ),
    (
        "Peer",
        &[
            ("podSelector", "Selector", "Labels of Pods."),
            (
                "namespaceSelector",
                "Selector",
                "Labels of the namespaces of the Pods. If absent, the namespace of the policy.",
            ),
            ("ipBlock", "IpBlock", "A range of addresses."),
        ],
    ),
    (
        "IpBlock",
        &[
            ("cidr", "", "The range, such as 192.168.0.0/16."),
            ("except", "", "Parts of the range that do not count."),
        ],
    ),
    (
        "PolicyPort",
        &[
            ("protocol", "", "TCP (the default), UDP or SCTP."),
            (
                "port",
                "",
                "The port, by number or by its name in the Pod. If absent, all ports of the protocol.",
            ),
            ("endPort", "", "The last port of a range that begins with `port`."),
        ],
    ),
];
