// What takes a cluster's place for Gateway API's conformance suite; suite.go says what of it is whose.
package suite

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/apis/v1alpha2"
	"sigs.k8s.io/gateway-api/apis/v1alpha3"
	"sigs.k8s.io/gateway-api/apis/v1beta1"
	"sigs.k8s.io/yaml"
)

const (
	class   = "voile"
	control = "127.0.0.1:15012"
	// So long nothing has been written before what Voile says is taken for an answer to it.
	settled = 700 * time.Millisecond
)

// Which object: its kind with version, namespace and name.
type key struct {
	gvk             schema.GroupVersionKind
	namespace, name string
}

func (k key) file() string {
	return strings.ToLower(strings.ReplaceAll(fmt.Sprintf("%s-%s-%s-%s.yaml", k.gvk.Kind, k.gvk.Version, k.namespace, k.name), "/", "-"))
}

// A program that runs, and what it said by lines.
type process struct {
	command *exec.Cmd
	mutex   sync.Mutex
	lines   []string
	times   []time.Time
}

func start(command *exec.Cmd) (*process, error) {
	running := &process{command: command}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	command.Stdout, command.Stderr = write, write
	if err := command.Start(); err != nil {
		return nil, err
	}
	write.Close()
	go func() {
		scanner := bufio.NewScanner(read)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			running.mutex.Lock()
			running.lines = append(running.lines, scanner.Text())
			running.times = append(running.times, time.Now())
			running.mutex.Unlock()
		}
	}()
	return running, nil
}

func (p *process) stop() {
	if p != nil && p.command.Process != nil {
		p.command.Process.Kill()
		p.command.Wait()
	}
}

// A Pod of a Deployment.
type backend struct {
	pod     *corev1.Pod
	owner   key
	spec    corev1.PodSpec
	number  int
	running *process
	failed  string
}

// A Pod of a Gateway.
type edge struct {
	owner   key
	number  int
	running *process
	ready   bool
}

func (e *edge) address() string { return fmt.Sprintf("10.77.1.%d", e.number) }

// What takes a cluster's place.
type cluster struct {
	t        *testing.T
	client   client.WithWatch
	folder   string
	mutex    sync.Mutex
	objects  map[key]*unstructured.Unstructured
	wrote    time.Time
	backends map[types.NamespacedName]*backend
	edges    map[key]*edge
	numbers  int
}

func (c *cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.folder}, parts...)...)
}

func do(t *testing.T, name string, arguments ...string) {
	t.Helper()
	if output, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, arguments, err, output)
	}
}

func keyOf(object client.Object, known *runtime.Scheme) (key, error) {
	gvk, err := apiutil.GVKForObject(object, known)
	return key{gvk, object.GetNamespace(), object.GetName()}, err
}

// What a generation is of: everything but who an object is and what became of it.
func spec(fields map[string]any) string {
	all := map[string]any{}
	for name, value := range fields {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "status"}, name) {
			all[name] = value
		}
	}
	return inJSON(all)
}

// Follows an object that was written.
func (c *cluster) follow(object client.Object) error {
	at, err := keyOf(object, c.client.Scheme())
	if err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	copied := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(fields)}
	copied.SetGroupVersionKind(at.gvk)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.objects[at] = copied
	return c.obey()
}

func (c *cluster) forget(object client.Object) error {
	at, err := keyOf(object, c.client.Scheme())
	if err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.objects, at)
	return c.obey()
}

func (c *cluster) generation(object client.Object) int64 {
	at, err := keyOf(object, c.client.Scheme())
	if err != nil {
		return 1
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	before, found := c.objects[at]
	if !found {
		return 1
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil || spec(before.Object) == spec(fields) {
		return before.GetGeneration()
	}
	return before.GetGeneration() + 1
}

// Puts a file in the place of another at once, where it says something else.
func (c *cluster) put(name string, text []byte) {
	path := c.path("config", name)
	if before, err := os.ReadFile(path); err == nil && bytes.Equal(before, text) {
		return
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		panic(err)
	}
	c.wrote = time.Now()
}

func (c *cluster) write(at key, object map[string]any) string {
	shown := map[string]any{}
	for name, value := range object {
		if name != "status" || at.gvk.Kind == "Pod" {
			shown[name] = value
		}
	}
	metadata := map[string]any{}
	said, _ := object["metadata"].(map[string]any)
	for _, name := range []string{"name", "namespace", "labels", "annotations", "creationTimestamp"} {
		if value, found := said[name]; found && value != nil {
			metadata[name] = value
		}
	}
	shown["metadata"] = metadata
	shown["apiVersion"], shown["kind"] = at.gvk.GroupVersion().String(), at.gvk.Kind
	text, err := yaml.Marshal(shown)
	if err != nil {
		panic(err)
	}
	c.put(at.file(), text)
	return at.file()
}

// Does what the objects say: files, Pods, gateways. The mutex is held.
func (c *cluster) obey() error {
	keep := map[string]bool{}
	deployments := map[key]bool{}
	gateways := map[key]bool{}
	for at, object := range c.objects {
		switch at.gvk.Kind {
		case "Deployment":
			deployments[at] = true
			c.deploy(at, object)
			continue
		case "CustomResourceDefinition", "ReplicaSet", "Job":
			continue
		case "Gateway":
			named, _, _ := unstructured.NestedString(object.Object, "spec", "gatewayClassName")
			if named == class {
				gateways[at] = true
				if _, found := c.edges[at]; !found {
					c.numbers++
					c.edges[at] = &edge{owner: at, number: c.numbers}
					do(c.t, "ip", "address", "add", c.edges[at].address()+"/32", "dev", "suite0")
				}
			}
		case "Pod":
			continue
		}
		keep[c.write(at, object.Object)] = true
	}
	for name, one := range c.backends {
		if !deployments[one.owner] {
			one.running.stop()
			delete(c.backends, name)
			pod := one.pod
			go c.client.Delete(context.Background(), pod)
			continue
		}
		c.run(one)
		fields, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(one.pod)
		at := key{schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, one.pod.Namespace, one.pod.Name}
		keep[c.write(at, fields)] = true
	}
	for at, one := range c.edges {
		if !gateways[at] {
			one.running.stop()
			delete(c.edges, at)
			do(c.t, "ip", "address", "del", one.address()+"/32", "dev", "suite0")
			continue
		}
		name := strings.ToLower("edge-" + at.namespace + "-" + at.name + ".yaml")
		c.put(name, []byte(c.edgeResources(one)))
		keep[name] = true
		if one.running == nil {
			c.open(one)
		}
	}
	files, err := os.ReadDir(c.path("config"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if !keep[file.Name()] && strings.HasSuffix(file.Name(), ".yaml") {
			os.Remove(c.path("config", file.Name()))
			c.wrote = time.Now()
		}
	}
	return nil
}

// A Gateway's ports, its ListenerSets' among them.
func (c *cluster) ports(at key) []int64 {
	var ports []int64
	add := func(object *unstructured.Unstructured) {
		listeners, _, _ := unstructured.NestedSlice(object.Object, "spec", "listeners")
		for _, one := range listeners {
			var port int64
			switch number := one.(map[string]any)["port"].(type) {
			case int64:
				port = number
			case float64:
				port = int64(number)
			}
			if port > 0 && !slices.Contains(ports, port) {
				ports = append(ports, port)
			}
		}
	}
	add(c.objects[at])
	for other, object := range c.objects {
		if other.gvk.Kind != "ListenerSet" {
			continue
		}
		name, _, _ := unstructured.NestedString(object.Object, "spec", "parentRef", "name")
		namespace, found, _ := unstructured.NestedString(object.Object, "spec", "parentRef", "namespace")
		if !found {
			namespace = other.namespace
		}
		if name == at.name && namespace == at.namespace {
			add(object)
		}
	}
	slices.Sort(ports)
	return ports
}

func (c *cluster) edgeResources(one *edge) string {
	name, namespace := one.owner.name+"-"+class, one.owner.namespace
	ready := "False"
	if one.ready {
		ready = "True"
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s, namespace: %[2]s}
---
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: %[2]s
  labels: {gateway.networking.k8s.io/gateway-name: %[3]s, sidecar.istio.io/inject: "true"}
  annotations: {inject.istio.io/templates: gateway}
spec:
  serviceAccountName: %[1]s
  containers: [{name: istio-proxy, image: auto}]
status: {phase: Running, podIP: %[4]s, conditions: [{type: Ready, status: "%[5]s"}]}
`, name, namespace, one.owner.name, one.address(), ready)
	ports := c.ports(one.owner)
	if len(ports) == 0 {
		return text
	}
	text += fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec:
  selector: {gateway.networking.k8s.io/gateway-name: %s}
  ports:
`, name, namespace, one.owner.name)
	for _, port := range ports {
		text += fmt.Sprintf("  - {name: p%[1]d, port: %[1]d, targetPort: %[1]d}\n", port)
	}
	return text
}

// Starts a gateway's proxy.
func (c *cluster) open(one *edge) {
	name, namespace := one.owner.name+"-"+class, one.owner.namespace
	voile := os.Getenv("VOILE")
	token := exec.Command(voile, "token", "create", "--service-account", namespace+"/"+name, "--pod", name, "--state", c.path("state"))
	printed, err := token.Output()
	if err != nil {
		c.t.Errorf("no token for %s: %v", name, err)
		return
	}
	file := c.path(fmt.Sprintf("%d.token", one.number))
	if err := os.WriteFile(file, printed, 0o600); err != nil {
		panic(err)
	}
	port := func(kind int) string { return fmt.Sprintf("127.0.0.1:%d", 20_000+10*one.number+kind) }
	proxy := exec.Command(voile, "proxy", "--role", "gateway", "--workload", namespace+"/"+name, "--control", "https://"+control,
		"--root-cert", c.path("state", "root-cert.pem"), "--token-file", file,
		"--admin", port(0), "--metrics", port(1), "--readiness", port(2))
	one.running, err = start(proxy)
	if err != nil {
		c.t.Errorf("no proxy for %s: %v", name, err)
	}
}

// Makes a Deployment's Pods.
func (c *cluster) deploy(at key, object *unstructured.Unstructured) {
	replicas, found, _ := unstructured.NestedInt64(object.Object, "spec", "replicas")
	if !found {
		replicas = 1
	}
	template, _, _ := unstructured.NestedMap(object.Object, "spec", "template")
	var made corev1.PodTemplateSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, &made); err != nil {
		c.t.Errorf("%v: %v", at, err)
		return
	}
	for number := range replicas {
		// The suite takes the last two parts of a Pod's name off to know whose it is.
		name := types.NamespacedName{Namespace: at.namespace, Name: fmt.Sprintf("%s-pod-%d", at.name, number)}
		if _, found := c.backends[name]; found {
			continue
		}
		c.numbers++
		pod := &corev1.Pod{}
		pod.Name, pod.Namespace = name.Name, name.Namespace
		pod.Labels = map[string]string{"sidecar.istio.io/inject": "false"}
		for label, value := range made.Labels {
			pod.Labels[label] = value
		}
		pod.Spec.Containers = []corev1.Container{{Name: "app"}}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.PodIP = fmt.Sprintf("10.77.2.%d", c.numbers)
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		c.backends[name] = &backend{pod: pod, owner: at, spec: made.Spec, number: c.numbers}
		go c.client.Create(context.Background(), pod.DeepCopy())
	}
}

// Starts a Pod when the Secrets that it wants are there. Only the suite's own server is run; what is something else (a server of DNS, for
// UDP alone) is called ready, since the suite waits for all of them.
func (c *cluster) run(one *backend) {
	if one.running != nil || one.failed != "" {
		return
	}
	container := one.spec.Containers[0]
	if !strings.Contains(container.Image, "echo-basic") {
		one.failed = "another program: " + container.Image
		c.t.Logf("%s is not started: %s", one.pod.Name, one.failed)
		c.ready(one)
		return
	}
	folders := map[string]string{}
	for _, mount := range container.VolumeMounts {
		for _, volume := range one.spec.Volumes {
			if volume.Name != mount.Name || volume.Secret == nil {
				continue
			}
			secret := c.objects[key{schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, one.pod.Namespace, volume.Secret.SecretName}]
			if secret == nil {
				return
			}
			var held corev1.Secret
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(secret.Object, &held); err != nil {
				panic(err)
			}
			folder := c.path("volumes", fmt.Sprint(one.number), volume.Name)
			if err := os.MkdirAll(folder, 0o700); err != nil {
				panic(err)
			}
			for name, data := range held.Data {
				for _, item := range volume.Secret.Items {
					if item.Key == name {
						name = item.Path
					}
				}
				if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
					panic(err)
				}
			}
			folders[mount.MountPath] = folder
		}
	}
	net, host := fmt.Sprintf("pod%d", one.number), fmt.Sprintf("v%d", one.number)
	do(c.t, "ip", "netns", "add", net)
	do(c.t, "ip", "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", net)
	do(c.t, "ip", "link", "set", host, "master", "suite0", "up")
	do(c.t, "ip", "-n", net, "address", "add", one.pod.Status.PodIP+"/16", "dev", "eth0")
	do(c.t, "ip", "-n", net, "link", "set", "eth0", "up")
	do(c.t, "ip", "-n", net, "link", "set", "lo", "up")
	command := exec.Command("ip", "netns", "exec", net, os.Getenv("ECHO"))
	command.Env = os.Environ()
	for _, variable := range container.Env {
		value := variable.Value
		if from := variable.ValueFrom; from != nil && from.FieldRef != nil {
			switch from.FieldRef.FieldPath {
			case "metadata.name":
				value = one.pod.Name
			case "metadata.namespace":
				value = one.pod.Namespace
			case "status.podIP":
				value = one.pod.Status.PodIP
			}
		}
		for mounted, folder := range folders {
			value = strings.ReplaceAll(value, mounted, folder)
		}
		command.Env = append(command.Env, variable.Name+"="+value)
	}
	running, err := start(command)
	if err != nil {
		c.t.Errorf("%s: %v", one.pod.Name, err)
		return
	}
	one.running = running
	c.ready(one)
}

func (c *cluster) ready(one *backend) {
	one.pod.Status.Conditions[0].Status = corev1.ConditionTrue
	pod := one.pod.DeepCopy()
	go func() {
		for range 50 {
			var stored corev1.Pod
			if err := c.client.Get(context.Background(), client.ObjectKeyFromObject(pod), &stored); err == nil {
				stored.Status = pod.Status
				if c.client.Status().Update(context.Background(), &stored) == nil {
					return
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
}

// Takes over what Voile says, until the context ends.
func (c *cluster) listen(ctx context.Context) {
	for ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		c.mutex.Lock()
		changed := false
		for _, one := range c.edges {
			answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz/ready", 20_000+10*one.number+2))
			ready := err == nil && answer.StatusCode == 200
			if err == nil {
				answer.Body.Close()
			}
			changed = changed || ready != one.ready
			one.ready = ready
		}
		if changed {
			if err := c.obey(); err != nil {
				c.t.Error(err)
			}
		}
		quiet := time.Since(c.wrote) > settled
		var known []*unstructured.Unstructured
		addresses := map[types.NamespacedName]string{}
		for _, object := range c.objects {
			known = append(known, object.DeepCopy())
		}
		for at, one := range c.edges {
			addresses[types.NamespacedName{Namespace: at.namespace, Name: at.name}] = one.address()
		}
		c.mutex.Unlock()
		if !quiet {
			continue
		}
		text, err := os.ReadFile(c.path("state", "gateway-api-status.yaml"))
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(text), "\n") {
			var said unstructured.Unstructured
			if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &said.Object) != nil {
				continue
			}
			for _, object := range known {
				same := object.GetKind() == said.GetKind() && object.GetName() == said.GetName()
				if same && (object.GetKind() == "GatewayClass" || object.GetNamespace() == said.GetNamespace()) {
					c.tell(object, said.Object["status"].(map[string]any), addresses)
				}
			}
		}
	}
}

// Gives an object the status that Voile says, and what a file cannot know.
func (c *cluster) tell(object *unstructured.Unstructured, status map[string]any, addresses map[types.NamespacedName]string) {
	ctx := context.Background()
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(object.GroupVersionKind())
	if c.client.Get(ctx, client.ObjectKeyFromObject(object), stored) != nil {
		return
	}
	if stored.GetGeneration() != object.GetGeneration() {
		return
	}
	status = runtime.DeepCopyJSON(status)
	if _, found := status["addresses"]; found || object.GetKind() == "Gateway" {
		delete(status, "addresses")
		at := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
		if address, found := addresses[at]; found {
			status["addresses"] = []any{map[string]any{"type": "IPAddress", "value": address}}
		}
	}
	before, _ := stored.Object["status"].(map[string]any)
	complete(status, before, object.GetGeneration())
	if inJSON(status) == inJSON(before) {
		return
	}
	stored.Object["status"] = status
	// What is stored has the type that is known: lists of it cannot hold another.
	typed, err := c.client.Scheme().New(stored.GroupVersionKind())
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(stored.Object, typed)
	}
	if err == nil {
		err = c.client.Status().Update(ctx, typed.(client.Object))
	}
	if err != nil {
		c.t.Logf("status of %s %s: %v", object.GetKind(), object.GetName(), err)
	}
}

func inJSON(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

// Conditions say of which generation they are, and since when they hold.
func complete(value, before any, generation int64) {
	switch value := value.(type) {
	case map[string]any:
		old, _ := before.(map[string]any)
		if _, is := value["reason"]; is {
			value["observedGeneration"] = generation
			value["lastTransitionTime"] = time.Now().UTC().Format(time.RFC3339)
			if old != nil && old["type"] == value["type"] && old["status"] == value["status"] {
				value["lastTransitionTime"] = old["lastTransitionTime"]
			}
		}
		for name, one := range value {
			complete(one, old[name], generation)
		}
	case []any:
		old, _ := before.([]any)
		for index, one := range value {
			var other any
			if index < len(old) {
				other = old[index]
			}
			complete(one, other, generation)
		}
	}
}

// What Pods said, where the suite asks an API server for it.
func (c *cluster) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	if len(parts) != 7 || parts[6] != "log" {
		http.NotFound(answer, request)
		return
	}
	since, _ := time.Parse(time.RFC3339, request.URL.Query().Get("sinceTime"))
	c.mutex.Lock()
	one := c.backends[types.NamespacedName{Namespace: parts[3], Name: parts[5]}]
	c.mutex.Unlock()
	if one == nil || one.running == nil {
		http.NotFound(answer, request)
		return
	}
	one.running.mutex.Lock()
	defer one.running.mutex.Unlock()
	for index, line := range one.running.lines {
		if !one.running.times[index].Before(since) {
			fmt.Fprintln(answer, line)
		}
	}
}

func (c *cluster) functions() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, inner client.WithWatch, object client.Object, options ...client.CreateOption) error {
			object = c.typed(object)
			object.SetGeneration(1)
			object.SetCreationTimestamp(metav1.Now())
			if secret, is := object.(*corev1.Secret); is && secret.StringData != nil {
				return fmt.Errorf("stringData of %s", secret.Name)
			}
			if err := inner.Create(ctx, object, options...); err != nil {
				return err
			}
			return c.follow(object)
		},
		Update: func(ctx context.Context, inner client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			object = c.typed(object)
			object.SetGeneration(c.generation(object))
			if err := inner.Update(ctx, object, options...); err != nil {
				return err
			}
			return c.follow(object)
		},
		Patch: func(ctx context.Context, inner client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := inner.Patch(ctx, object, patch, options...); err != nil {
				return err
			}
			object.SetGeneration(c.generation(object))
			if err := inner.Update(ctx, object); err != nil {
				return err
			}
			return c.follow(object)
		},
		Delete: func(ctx context.Context, inner client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if err := inner.Delete(ctx, object, options...); err != nil {
				return err
			}
			return c.forget(object)
		},
	}
}

// The same object with the type that is known.
func (c *cluster) typed(object client.Object) client.Object {
	raw, is := object.(*unstructured.Unstructured)
	if !is {
		return object
	}
	typed, err := c.client.Scheme().New(raw.GroupVersionKind())
	if err != nil || runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, typed) != nil {
		return object
	}
	return typed.(client.Object)
}

func newCluster(t *testing.T) *cluster {
	folder := t.TempDir()
	if kept := os.Getenv("KEEP"); kept != "" {
		folder = kept
	}
	c := &cluster{
		t: t, folder: folder, objects: map[key]*unstructured.Unstructured{},
		backends: map[types.NamespacedName]*backend{}, edges: map[key]*edge{},
	}
	for _, name := range []string{"config", "volumes"} {
		if err := os.Mkdir(c.path(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	do(t, "mount", "-t", "tmpfs", "none", "/run")
	do(t, "ip", "link", "set", "lo", "up")
	do(t, "ip", "link", "add", "suite0", "type", "bridge")
	do(t, "ip", "address", "add", "10.77.0.1/16", "dev", "suite0")
	do(t, "ip", "link", "set", "suite0", "up")
	known := scheme.Scheme
	for _, install := range []func(*runtime.Scheme) error{
		gatewayv1.Install, v1alpha2.Install, v1alpha3.Install, v1beta1.Install, apiextensionsv1.AddToScheme,
	} {
		if err := install(known); err != nil {
			t.Fatal(err)
		}
	}
	c.client = fake.NewClientBuilder().WithScheme(known).WithInterceptorFuncs(c.functions()).WithStatusSubresource(
		&corev1.Pod{}, &gatewayv1.GatewayClass{}, &gatewayv1.Gateway{}, &gatewayv1.ListenerSet{}, &gatewayv1.HTTPRoute{}, &gatewayv1.GRPCRoute{},
		&gatewayv1.TLSRoute{}, &v1alpha2.TLSRoute{}, &v1alpha3.TLSRoute{}, &gatewayv1.TCPRoute{}, &v1alpha2.TCPRoute{},
		&gatewayv1.BackendTLSPolicy{}, &v1alpha3.BackendTLSPolicy{},
	).Build()
	return c
}
