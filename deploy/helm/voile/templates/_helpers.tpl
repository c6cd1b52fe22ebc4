{{/* Name of the objects of this revision. */}}
{{- define "voile.name" -}}
istiod{{ with .Values.revision }}-{{ . }}{{ end }}
{{- end }}

{{/* Name of the objects of this revision that belong to the whole cluster. */}}
{{- define "voile.clusterName" -}}
voile-{{ include "voile.name" . }}-{{ .Release.Namespace }}
{{- end }}

{{/* Name of the ConfigMap with MeshConfig. */}}
{{- define "voile.meshConfigMap" -}}
istio{{ with .Values.revision }}-{{ . }}{{ end }}
{{- end }}

{{/* Suffix of the names of webhook configurations: Istio's names have none in istio-system. */}}
{{- define "voile.webhookSuffix" -}}
{{- if ne .Release.Namespace "istio-system" }}-{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- define "voile.injector" -}}
istio-sidecar-injector{{ with .Values.revision }}-{{ . }}{{ end }}{{ include "voile.webhookSuffix" . }}
{{- end }}

{{/* Name of the configuration of the validating webhooks, as Istio's. */}}
{{- define "voile.validatorName" -}}
istio-validator{{ with .Values.revision }}-{{ . }}{{ end }}-{{ .Release.Namespace }}
{{- end }}

{{/* Labels that select the pods of this revision. */}}
{{- define "voile.selector" -}}
app: istiod
istio.io/rev: {{ .Values.revision | default "default" }}
{{- end }}

{{/* Labels that tell whose an object is. `voile uninstall` finds objects by instance and managed-by. */}}
{{- define "voile.ownerLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: voile
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Labels of the objects of this revision. */}}
{{- define "voile.labels" -}}
{{ include "voile.selector" . }}
app.kubernetes.io/name: istiod
{{ include "voile.ownerLabels" . }}
{{- end }}

{{/* Labels of webhook configurations. The control plane of the revision finds them by app and istio.io/rev. */}}
{{- define "voile.injectorLabels" -}}
app: sidecar-injector
istio.io/rev: {{ .Values.revision | default "default" }}
{{ include "voile.ownerLabels" . }}
{{- end }}

{{/*
"true" if this release installs an object of the whole cluster. Arguments: root, mode, apiVersion, kind, name.
Under `auto` an object of others is left alone.
*/}}
{{- define "voile.wanted" -}}
{{- if eq .mode "always" -}}
true
{{- else if eq .mode "auto" -}}
{{- $there := lookup .apiVersion .kind "" .name -}}
{{- $labels := dig "metadata" "labels" (dict) $there -}}
{{- $ours := and (eq (get $labels "app.kubernetes.io/instance") .root.Release.Name) (eq (get $labels "app.kubernetes.io/managed-by") .root.Release.Service) -}}
{{- if or (not $there) $ours -}}
true
{{- end -}}
{{- end -}}
{{- end }}

{{/* "true" if nodes have an agent: for ambient pods, or for the connections of sidecars. */}}
{{- define "voile.nodeAgent" -}}
{{- if or .Values.ambient.enabled (and .Values.pilot.cni.enabled .Values.cni.enabled) -}}
true
{{- end -}}
{{- end }}

{{/* Name of the node agent's objects of this revision. */}}
{{- define "voile.node" -}}
voile-node{{ with .Values.revision }}-{{ . }}{{ end }}
{{- end }}

{{/* Name of the node agent's objects that belong to the whole cluster. */}}
{{- define "voile.nodeClusterName" -}}
{{ include "voile.node" . }}-{{ .Release.Namespace }}
{{- end }}

{{/* Labels that select the pods of the node agent. */}}
{{- define "voile.nodeSelector" -}}
app: voile-node
istio.io/rev: {{ .Values.revision | default "default" }}
{{- end }}

{{/* Labels of the node agent's objects. */}}
{{- define "voile.nodeLabels" -}}
{{ include "voile.nodeSelector" . }}
app.kubernetes.io/name: {{ include "voile.node" . }}
{{ include "voile.ownerLabels" . }}
{{- end }}

{{/* The image of every container. */}}
{{- define "voile.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Names values that contradict each other, with the cure. The control plane would refuse to start with them. */}}
{{- define "voile.contradictions" -}}
{{- $env := .Values.pilot.env -}}
{{- if eq (quote $env.ENABLE_CA_SERVER) (quote "false") -}}
{{- if not .Values.global.caAddress -}}
pilot.env.ENABLE_CA_SERVER: nobody would sign the certificates of workloads; set global.caAddress to HOST:PORT of an authority, such as cert-manager-istio-csr.cert-manager.svc:443
{{- else if $env.EXTERNAL_CA -}}
pilot.env.ENABLE_CA_SERVER: a control plane that signs nothing asks no signer; leave out pilot.env.EXTERNAL_CA
{{- else if eq (quote $env.ENABLE_CLUSTER_TRUST_BUNDLE_API) (quote "true") -}}
pilot.env.ENABLE_CA_SERVER: a control plane that signs nothing writes no roots; leave out pilot.env.ENABLE_CLUSTER_TRUST_BUNDLE_API
{{- end -}}
{{- else if and $env.EXTERNAL_CA (not $env.K8S_SIGNER) -}}
pilot.env.K8S_SIGNER: the signer of pilot.env.EXTERNAL_CA has no name; set it, such as clusterissuers.cert-manager.io/mesh
{{- end -}}
{{- end }}
