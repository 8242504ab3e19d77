package redistest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// patience is how long the members of a topology may take to find together.
const patience = time.Minute

// Cluster is a Redis Cluster of three masters that belongs to one test.
type Cluster struct{ Nodes []*Server }

// StartCluster starts a cluster and returns when it works.
func StartCluster(tb testing.TB) *Cluster {
	tb.Helper()
	const nodes, slots = 3, 16384
	c := &Cluster{}
	for i := range nodes {
		c.Nodes = append(c.Nodes, startOnPort(tb, "", "cluster-enabled yes", "cluster-node-timeout 2000"))
		client := c.Nodes[i].Client(tb)
		Do(tb, client, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		assign := []string{"CLUSTER", "ADDSLOTS"}
		for slot := i * slots / nodes; slot < (i+1)*slots/nodes; slot++ {
			assign = append(assign, strconv.Itoa(slot))
		}
		Do(tb, client, assign...)
		if i > 0 {
			Do(tb, client, append([]string{"CLUSTER", "MEET"}, c.Nodes[0].hostPort()...)...)
		}
	}
	for _, node := range c.Nodes {
		client := node.Client(tb)
		eventually(tb, func() bool {
			return says(tb, client, []string{"CLUSTER", "INFO"}, "cluster_state:ok", "cluster_known_nodes:3")
		})
	}
	return c
}

// Client returns a new client of the cluster, closed when the test ends.
func (c *Cluster) Client(tb testing.TB) rueidis.Client {
	tb.Helper()
	return Connect(tb, rueidis.ClientOption{InitAddress: []string{c.Nodes[0].Address}})
}

// Sentinel is a master with a replica and a sentinel that watches them. It
// belongs to one test.
type Sentinel struct {
	Master, Replica, Watcher *Server
}

// MasterSet is the name under which the sentinel knows the two.
const MasterSet = "idem"

// StartSentinel starts the three and returns when the replica is one.
func StartSentinel(tb testing.TB) *Sentinel {
	tb.Helper()
	const promptly = "repl-diskless-sync-delay 0"
	s := &Sentinel{Master: startOnPort(tb, "", promptly)}
	master := strings.Join(s.Master.hostPort(), " ")
	s.Replica = startOnPort(tb, "", promptly, "replicaof "+master)
	s.Watcher = startOnPort(tb, "--sentinel",
		"sentinel monitor "+MasterSet+" "+master+" 1",
		"sentinel down-after-milliseconds "+MasterSet+" 60000", // a busy machine is no reason
		"sentinel failover-timeout "+MasterSet+" 2000")
	replica, watcher := s.Replica.Client(tb), s.Watcher.Client(tb)
	eventually(tb, func() bool {
		return says(tb, replica, []string{"INFO", "replication"}, "master_link_status:up") &&
			says(tb, watcher, []string{"INFO", "sentinel"}, "slaves=1")
	})
	return s
}

// Client returns a new client of whichever is the master, closed when the test
// ends.
func (s *Sentinel) Client(tb testing.TB) rueidis.Client {
	tb.Helper()
	return Connect(tb, rueidis.ClientOption{
		InitAddress: []string{s.Watcher.Address}, Sentinel: rueidis.SentinelOption{MasterSet: MasterSet},
	})
}

// Failover crashes the master, has the sentinel notice, and returns when the
// replica is the master.
func (s *Sentinel) Failover(tb testing.TB) {
	tb.Helper()
	s.Master.Crash(tb)
	replica, watcher := s.Replica.Client(tb), s.Watcher.Client(tb)
	eventually(tb, func() bool {
		if says(tb, replica, []string{"INFO", "replication"}, "role:master") {
			return true
		}
		says(tb, watcher, []string{"SENTINEL", "FAILOVER", MasterSet}) // refused while it is at it
		return false
	})
}

func (s *Server) hostPort() []string {
	host, port, _ := strings.Cut(s.Address, ":")
	return []string{host, port}
}

// says reports whether the reply to a command has all of texts in it. A server
// that changes its role may drop its clients, which is not fatal here.
func says(tb testing.TB, client rueidis.Client, command []string, texts ...string) bool {
	tb.Helper()
	reply, err := client.Do(tb.Context(), client.B().Arbitrary(command...).Build()).ToString()
	for _, text := range texts {
		if !strings.Contains(reply, text) {
			return false
		}
	}
	return err == nil
}

func eventually(tb testing.TB, f func() bool) {
	tb.Helper()
	require.Eventually(tb, f, patience, 20*time.Millisecond)
}
